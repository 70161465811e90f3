"""Before `create` and `run`: a bundle whose environment asks for a share gets it, or is not made into a container.

One rule: a bundle that asks for nothing stays byte for byte as it was, nobody is asked, and what only the others need
is not loaded.
"""

import os

from mpsd.containers.runtime import bundle_file, environment, json_text
from mpsd.containers.runtime.bundle_file import CONFIG, RECORD
from mpsd.containers.runtime.fields import inner, table, texts
from mpsd.containers.runtime.refused import Refused
from mpsd.containers.runtime.runtime_log import RuntimeLog


class Asker:
    """Whose bundle it is, where mpsd listens, and the command of the hook that tells mpsd of the container's end.

    runtime: the next one, which makes the container.
    """

    def __init__(
        self, root: str, container: str, run_directory: str, log: RuntimeLog, hook: list[str], runtime: str
    ) -> None:
        self.root = root
        self.container = container
        self.run_directory = run_directory
        self.log = log
        self.hook = hook
        self.runtime = runtime


def prepare(bundle: str, asker: Asker) -> None:
    """Refused, with the bundle as it was."""
    folder = bundle_file.open_folder(bundle, "the bundle")
    try:
        config = _config(folder)
        entries = texts(inner(config, "process", CONFIG), "env", CONFIG)
        if environment.asks(entries) or bundle_file.is_there(folder, RECORD):
            from mpsd.containers.runtime.settle import settle

            settle(folder, config, asker)
    finally:
        os.close(folder)


def _config(folder: int) -> dict[str, object]:
    try:
        data = bundle_file.read(folder, CONFIG, CONFIG)
    except FileNotFoundError:
        raise Refused("the bundle has no config.json; name the bundle's folder with --bundle") from None
    return table(json_text.read(data, CONFIG), CONFIG)
