"""What mpsd did to a bundle, in a file beside its config.json.

One rule: not in config.json, because an annotation there may come from a tenant.
"""

from mpsd.containers.runtime import bundle_file, json_text
from mpsd.containers.runtime.bundle_edit import Record, record_of
from mpsd.containers.runtime.bundle_file import RECORD
from mpsd.containers.runtime.fields import inner, table, text, word


class Kept:
    """root, container: whose bundle it is. variables: what its processes are started with. record: what was added."""

    def __init__(self, root: str, container: str, variables: dict[str, str], record: Record) -> None:
        self.root = root
        self.container = container
        self.variables = variables
        self.record = record


def read(folder: int) -> Kept | None:
    """None for a bundle that mpsd did nothing to. Refused where the file cannot be read."""
    try:
        data = bundle_file.read(folder, RECORD, RECORD)
    except FileNotFoundError:
        return None
    value = table(json_text.read(data, RECORD), RECORD)
    variables = inner(value, "environment", RECORD)
    environment = {name: word(entry, f"{RECORD}: environment") for name, entry in variables.items()}
    record = record_of(value.get("added"), f"{RECORD}: added")
    return Kept(text(value, "root", RECORD), text(value, "id", RECORD), environment, record)


def write(folder: int, kept: Kept) -> None:
    """OSError, Refused."""
    value = {
        "root": kept.root,
        "id": kept.container,
        "environment": kept.variables,
        "added": kept.record.written(),
    }
    bundle_file.replace(folder, RECORD, json_text.write(value, RECORD) + "\n", 0o600)
