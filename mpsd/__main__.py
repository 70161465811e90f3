"""`python -m mpsd` is `mpsd`."""

from mpsd.cli.main import main

main()
