"""Runs a simulator's program as another user: `as_user.py UID MODULE [ARGUMENT ...]`.

Python and mpsd may lie where that user may not read, so everything is imported first.
"""

import importlib
import os
import sys

for imported_late in ("mpsd.sim.control_question", "mpsd.sim.daemon_start"):
    importlib.import_module(imported_late)
uid = int(sys.argv[1])
main = importlib.import_module(sys.argv[2]).main
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
sys.exit(main(sys.argv[3:]))
