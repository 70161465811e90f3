"""What the launcher of mpsd-runtime and mpsd-runtime itself both know.

One rule: nothing is imported, because every container that is started waits for this to load.
"""

NEXT_RUNTIMES = ("nvidia-container-runtime", "runc")  # the first that is there, where no other is named
COMMANDS = ("create", "run", "exec", "over")  # those that something is done about
