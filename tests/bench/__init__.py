"""`make bench`: what mpsd costs, each figure beside a baseline taken in the same run."""
