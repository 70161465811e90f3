"""Becomes another user, then runs a program's main in this very process.

usage: as_user.py UID MODULE[,MODULE …] [ARGUMENT …]

Another user may not be able to read this checkout or its interpreter (a home is often 0700), so
everything is imported first and nothing is executed after. Only root can do it.
"""

import ctypes
import importlib
import os
import sys

PR_SET_DUMPABLE = 4  # linux/prctl.h


def main() -> None:
    uid, modules = int(sys.argv[1]), sys.argv[2].split(",")
    program, *_ = [importlib.import_module(module) for module in modules]
    os.chdir("/")
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # A process that changed its user may not even read its own /proc files; one that was executed
    # as that user may.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    sys.argv = [modules[0], *sys.argv[3:]]
    sys.exit(program.main())


if __name__ == "__main__":
    main()
