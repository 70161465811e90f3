"""Runs a simulator's program as another user: `as_user.py UID MODULE [ARGUMENT ...]`.

Python and mpsd may lie where that user may not read, so everything is imported first; all that only
a daemon needs, which is slow, where one is to start.
"""

import ctypes  # noqa: F401 - a context of the client
import importlib
import os
import sys

uid, module, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
main = importlib.import_module(module).main
if module == "mpsd.simulator.mps.control_daemon":
    importlib.import_module(
        "mpsd.simulator.mps.daemon" if arguments else "mpsd.simulator.mps.question"
    )
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
sys.exit(main(arguments))
