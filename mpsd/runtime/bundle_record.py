"""What mpsd did to a bundle, in a file beside its config.json.

One rule: not in config.json, because an annotation there may come from a tenant.
"""

from mpsd.runtime import bundle_file, json_text
from mpsd.runtime.bundle_edit import Record, record_of
from mpsd.runtime.fields import inner, table, text, word

NAME = "mpsd-runtime.json"


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
        data = bundle_file.read(folder, NAME, NAME)
    except FileNotFoundError:
        return None
    value = table(json_text.read(data, NAME), NAME)
    variables = inner(value, "environment", NAME)
    environment = {name: word(entry, f"{NAME}: environment") for name, entry in variables.items()}
    record = record_of(value.get("added"), f"{NAME}: added")
    return Kept(text(value, "root", NAME), text(value, "id", NAME), environment, record)


def write(folder: int, kept: Kept) -> None:
    """OSError, Refused."""
    value = {
        "root": kept.root,
        "id": kept.container,
        "environment": kept.variables,
        "added": kept.record.written(),
    }
    bundle_file.replace(folder, NAME, json_text.write(value, NAME) + "\n", 0o600)
