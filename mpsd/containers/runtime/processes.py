"""Before `exec --process FILE`: the new process gets the limits that hold now.

An engine's process file has the image's environment, without the grant's variables: its program would run beside MPS.
`exec` without a file takes the container's own environment, in which they are; `--env` behind it may lift them, which
only who may start programs as root on this machine can do, and the watchdog sees.

One rule: a container that has no grant is never kept waiting, and one that has is never without its variables.
"""

import os
import select
import time

from mpsd.containers.runtime import bundle as bundle_file
from mpsd.containers.runtime import bundle as bundle_record
from mpsd.containers.runtime import bundle as environment
from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.asking import ask
from mpsd.containers.runtime.asking import environment as variables_of
from mpsd.containers.runtime.json_text import ContainerRefused, inner, table, text, texts
from mpsd.containers.runtime.runtime_log import RuntimeLog

_STATES = ("state.json", "status")  # runc's and crun's, in the container's folder below the root
_LABEL = "bundle="  # in runc's state
_OK = 200
_ANSWER_S = 5.0


def prepare(root: str, container: str, process: str, run_directory: str, log: RuntimeLog) -> None:
    """Refused, with the file as it was."""
    kept = _kept(root, container)
    if kept is None:
        return
    folder_path, _, name = process.rpartition("/")
    folder = bundle_file.open_folder(
        folder_path or ("/" if process.startswith("/") else "."), "the folder of --process"
    )
    try:
        holder = table(json_text.read(bundle_file.read(folder, name, process), process), process)
        entries = texts(holder, "env", process)
        variables = _variables(kept, root, container, run_directory)
        holder["env"] = environment.replaced(entries, variables)
        bundle_file.replace(folder, name, json_text.write(holder, process))
    except FileNotFoundError:
        raise ContainerRefused(f"{process} is not there; name a file with --process") from None
    finally:
        os.close(folder)
    log.event("exec", environment=variables)


def _variables(kept: bundle_record.Kept, root: str, container: str, run_directory: str) -> dict[str, str]:
    """What mpsd says holds now; where it is away, what the container was made with. Refused."""
    try:
        asked = {"root": root, "id": container}
        answer = ask(run_directory, "/v1/containers/environment", asked, _ANSWER_S, patience_s=0.0)
        if answer.status == _OK:
            return variables_of(table(answer.body, "mpsd's answer"))
    except ContainerRefused:
        pass
    if (kept.root, kept.container) != (root, container):
        raise ContainerRefused(
            "mpsd does not answer, and the bundle is another container's by now; start it with `mpsd up`"
        )
    return kept.variables


def _kept(root: str, container: str) -> bundle_record.Kept | None:
    """What mpsd did to the container's bundle; None where it did nothing, or where there is no such container."""
    if "/" in container or container in {"", ".", ".."}:
        return None
    bundle = _bundle(f"{root}/{container}")
    if not bundle:
        return None
    try:
        folder = bundle_file.open_folder(bundle, "the bundle")
    except ContainerRefused:
        return None
    try:
        return bundle_record.read_record(folder)
    finally:
        os.close(folder)


def _bundle(state_path: str) -> str:
    """The folder of the container's bundle; empty where nobody says."""
    try:
        folder = bundle_file.open_folder(state_path, "the state")
    except ContainerRefused:
        return ""
    try:
        for name in _STATES:
            try:
                state = table(json_text.read(bundle_file.read(folder, name, name), name), name)
            except FileNotFoundError:
                continue
            labels = texts(inner(state, "config", name), "labels", name)
            named = [label.removeprefix(_LABEL) for label in labels if label.startswith(_LABEL)]
            return named[0] if named else text(state, "bundle", name)
        return ""
    finally:
        os.close(folder)


# `over`, the poststop hook: tells mpsd that a container has ended.
#
# One rule: it never fails and never takes long, since the container's engine waits for it; mpsd finds out by itself
# too.

_DEADLINE_S = 3.0
_LONGEST_STATE = 1024**2  # bytes
_STATE = "the container's state"


def over(root: str, run_directory: str, log_path: str) -> None:
    """Reads the OCI state of the container on standard input."""
    end = time.monotonic() + _DEADLINE_S
    log = RuntimeLog(log_path, root, "")
    try:
        container = text(table(json_text.read(_state(end), _STATE), _STATE), "id", _STATE)
        log = RuntimeLog(log_path, root, container)
        left = max(end - time.monotonic(), 0.0)
        ask(run_directory, "/v1/containers/over", {"root": root, "id": container}, left, patience_s=0.0)
    except (ContainerRefused, OSError) as error:
        log.event("over", reasons=[str(error)])
    else:
        log.event("over")


def _state(end: float) -> bytes:
    data = bytearray()
    while select.select([0], [], [], max(end - time.monotonic(), 0.0))[0]:
        piece = os.read(0, 65536)
        if not piece:
            return bytes(data)
        data += piece
        if len(data) > _LONGEST_STATE:
            raise ContainerRefused(f"{_STATE} has more than {_LONGEST_STATE} bytes")
    raise ContainerRefused(f"{_STATE} was not written within {_DEADLINE_S:g} s")
