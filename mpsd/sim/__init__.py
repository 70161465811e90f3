"""The simulator: programs and servers that answer as the real ones were seen to, without a GPU."""
