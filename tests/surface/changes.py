"""Where mpsd's surface is meant to differ from tests/data/surface.json, and why.

A key is `section: name`, as the failing test prints it; the last word of the name must stand in CHANGELOG.md. At a
release the list is written anew (`python -m tests.surface.made`) and this table is emptied.
"""

CHANGES: dict[str, str] = {"commands: mpsd demo --keep": "incidents can be rehearsed on a cluster that stays up"}
