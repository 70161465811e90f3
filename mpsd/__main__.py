"""`python -m mpsd` is `mpsd`."""

from mpsd.cli.plain import mpsd

mpsd()
