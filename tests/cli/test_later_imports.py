"""What a process that lasts imports late is there before it does anything."""

import ast
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from mpsd.cli.main import MPSD
from tests.world.captured import captured

BIN = Path(sys.executable).parent
LASTING = ("up", "agent", "control", "webhook", "scheduler")


def imported(tree: ast.AST) -> Iterator[str]:
    """Wherever it stands, but for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        yield from imported(node)


def source(module: str) -> Path | None:
    at = Path(*module.split("."))
    found = [one for one in (at.with_suffix(".py"), at / "__init__.py") if one.is_file()]
    return found[0] if found else None


def of_others(module: str) -> set[str]:
    """The packages of other projects that a module imports, or one that it imports."""
    found = set()
    seen = set[str]()
    due = [module]
    while due:
        name = due.pop()
        if name in seen:
            continue
        seen.add(name)
        if not name.startswith("mpsd."):
            found.add(name.partition(".")[0])
        elif file := source(name):
            due += imported(ast.parse(file.read_text()))
    return found - sys.stdlib_module_names


def brought(extra: str) -> set[str]:
    """The packages that `pip install mpsd[extra]` brings by itself."""
    wanted = set()
    for line in metadata.requires("mpsd") or ():
        requirement, _semicolon, marker = line.partition(";")
        if not marker or f"extra == '{extra}'" in marker.replace('"', "'"):
            wanted.add(requirement.partition(">")[0].strip().replace("_", "-"))
    packages = metadata.packages_distributions()
    return {
        name
        for name, by in packages.items()
        if wanted & {one.replace("_", "-").lower() for one in by}
    }


@pytest.mark.parametrize("name", LASTING)
def test_every_module_that_a_process_may_import_is_looked_for_at_its_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    verb = MPSD.verbs[name]
    module = import_module(verb.module)
    later = {one.partition(".")[0] for one in module.LATER}
    code = f"import sys, {verb.module}; print(*sys.modules)"
    at_once = {
        one.partition(".")[0] for one in captured([sys.executable, "-c", code]).stdout.split()
    }
    needed = of_others(verb.module) & brought(verb.extra or MPSD.extra)
    assert needed, "nothing was found"
    assert later == needed - at_once
    assert all(map(find_spec, module.LATER))


@pytest.mark.parametrize("name", LASTING)
def test_a_process_without_a_module_says_so_before_it_does_anything(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['psutil'] = None\n")
    run = tmp_path / "run"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "MPSD_RUN_DIR": str(run)}
    done = captured([BIN / "mpsd", name], env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mpsd {name} needs the module psutil: pip install ")
    assert not run.exists()
