"""Every container waits for what this program loads."""

import subprocess
import sys
from pathlib import Path

SLOW = {"argparse", "collections", "dataclasses", "enum", "json"}
SLOW |= {"pathlib", "re", "socket", "subprocess", "typing"}
_CHECKOUT = str(Path(__file__).parents[3])


def test_nothing_slow_is_loaded_even_where_all_of_it_is() -> None:
    modules = ", ".join(
        f"mpsd.containers.runtime.{path.stem}"
        for path in Path(_CHECKOUT, "mpsd/containers/runtime").glob("[!_]*.py")
    )
    asked = f"import sys; sys.path.append({_CHECKOUT!r}); import {modules}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-ISc", asked], stdout=subprocess.PIPE, timeout=30, check=True
    ).stdout
    assert "mpsd.containers.runtime.create" in loaded.decode().split()
    assert SLOW.isdisjoint(loaded.decode().split())
