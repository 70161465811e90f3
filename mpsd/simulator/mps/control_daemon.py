"""The program `nvidia-cuda-mps-control`: starts the daemon, or passes commands to the one that
runs.

A command costs a process each time, so nothing is imported that it does not need.
"""

import os
import sys

# What nvidia-cuda-mps-control says about itself (driver 580.159.04), its spelling included.

# ruff: noqa: E501  the program's own lines

BANNER = """\
CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000
Copyright (C) 2003 - 2025 NVIDIA Corporation.

"""

HELP = """\
CUDA MPS Control for Linux/Unix/QNX.
Copyright (C) 2003 - 2025 NVIDIA Corporation.

  This program allows multiple CUDA processes to share a single GPU context. For information on how to use the CUDA MPS, see the nvidia-cuda-mps-control manual page.

nvidia-cuda-mps-control [options] [command]
OPTIONS:
  -h,--help                Print this message
  -d,--daemon              Setup the daemon in the background
  -f,--forground           Setup the daemon in the foreground
  -M,--multiuser-server    Enable multi-user mode
  -q,--ready-devices      Prepare the daemon to query devices on startup

COMMAND:
  start_server -uid <user id>
                       Start a new instance of nvidia-cuda-mps-server with the given user ID
  quit
                       Terminate the controller
  get_server_list
                       Print out a list of servers
  get_server_status <PID>
                       Print out the status of the server
  get_client_list <PID>
                       List the client applications connected to the server
  get_device_client_list [<PID>]
                       List the devices and their client applications
  ps [-p PID]
                       Report a snapshot of the current client processes
  set_default_active_thread_percentage <percentage>
                       Set default active thread percentage for upcoming servers
  get_default_active_thread_percentage
                       Query the current default available thread percentage
  set_active_thread_percentage <PID> <percentage>
                       Override the active thread percentage of the MPS server
  get_active_thread_percentage <PID>
                       Query the current active thread percentage of the MPS server
  set_default_device_pinned_mem_limit <dev> <value>
                       Set default device pinned memory for upcoming servers
  get_default_device_pinned_mem_limit <dev>
                       Query the current default pinned memory limit for the device
  set_device_pinned_mem_limit <PID> <dev> <value>
                       Override the device pinned memory limit for MPS servers
  get_device_pinned_mem_limit <PID> <dev>
                       Query the current device pinned memory limit of the MPS server for the device
  set_default_client_priority <priority>
                       Sets default client priority for incoming clients
  get_default_client_priority
                       Query the current priority value that will be used for new clients
  terminate_client <server PID> <client PID>
                       Terminate all the outstanding GPU work of the MPS client process running on the MPS server
  device_query [<PID>] [--csv]
                       Enumerate all usable devices

"""


# in place of typing's, which takes half as long to import as a command takes in all
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = 13000  # of the controller that is played: of driver 580

PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108  the driver's own default

_FLAGS = {
    "-h": "help",
    "--help": "help",
    "-v": "version",
    "--version": "version",
    "-d": "background",
    "--daemon": "background",
    "-f": "foreground",
    "--forground": "foreground",
    "--foreground": "foreground",
    "-M": "multiuser",
    "--multiuser-server": "multiuser",
    "-q": "ready",
    "--ready-devices": "ready",
}


def main(arguments: "Sequence[str] | None" = None) -> int:
    """The exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    options = [argument for argument in given if argument.startswith("-")]
    if given and not given[0].startswith("-"):
        return _ask([" ".join(given)])
    if any(option not in _FLAGS for option in options):
        print(f"Unrecognized option \0\n{HELP}", end="")  # it does print that zero
        return 1
    flags = {_FLAGS[option] for option in options}
    if "help" in flags or "version" in flags:
        print(HELP if "help" in flags else BANNER, end="")
        return 0
    if flags & {"background", "foreground"}:
        return _start(flags)
    return _ask(sys.stdin)


def _ask(commands: "Iterable[str]") -> int:
    from mpsd.simulator.mps.question import ask

    return ask(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or PIPE_DIRECTORY, commands)


def _start(flags: "set[str]") -> int:
    from mpsd.simulator.mps.daemon import start

    multiuser = "multiuser" in flags
    if multiuser and os.geteuid() != 0:
        print("Only root user may enable -multiuser-server!", file=sys.stderr)
        return 1
    return start(os.environ, multiuser=multiuser, foreground="foreground" in flags)


if __name__ == "__main__":
    sys.exit(main())
