"""Before `exec --process FILE`: the new process gets the limits that hold now.

An engine's process file has the image's environment, without the grant's variables: its program would run beside MPS.
`exec` without a file takes the container's own environment, in which they are; `--env` behind it may lift them, which
only who may start programs as root on this machine can do, and the watchdog sees.

One rule: a container that has no grant is never kept waiting, and one that has is never without its variables.
"""

import os

from mpsd.containers.runtime import bundle_file, bundle_record, environment, json_text
from mpsd.containers.runtime.asking import ask
from mpsd.containers.runtime.fields import inner, table, text, texts
from mpsd.containers.runtime.granted import environment as variables_of
from mpsd.containers.runtime.refused import Refused
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
        raise Refused(f"{process} is not there; name a file with --process") from None
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
    except Refused:
        pass
    if (kept.root, kept.container) != (root, container):
        raise Refused("mpsd does not answer, and the bundle is another container's by now; start it with `mpsd up`")
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
    except Refused:
        return None
    try:
        return bundle_record.read(folder)
    finally:
        os.close(folder)


def _bundle(state_path: str) -> str:
    """The folder of the container's bundle; empty where nobody says."""
    try:
        folder = bundle_file.open_folder(state_path, "the state")
    except Refused:
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
