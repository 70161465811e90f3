"""The modules of mpsd, read with `ast` and not imported: their lines, classes and imports.

Left out: what protoc generates (`*_pb2*`), and every file that is not Python. A file without a line
(an empty `__init__.py`) is no file that anybody reads, and is not counted.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import mpsd

PACKAGE = Path(mpsd.__file__).parent
# the rooms that the product's totals leave out
NOT_PRODUCT = frozenset({"sim", "simulator", "bench"})
TOP = "(top)"  # the room of what lies in mpsd/ itself


@dataclass(frozen=True, slots=True)
class Module:
    """at_start: what is imported with it. later: what its functions import when they are called.
    for_types: what only a type checker reads. All as they are written, so that some are names
    inside a module.
    """

    name: str
    path: Path
    room: str
    lines: int
    classes: tuple[str, ...]
    at_start: frozenset[str]
    later: frozenset[str]
    for_types: frozenset[str]

    @property
    def is_product(self) -> bool:
        return self.room not in NOT_PRODUCT


class Tree:
    """All modules of a package, by name."""

    def __init__(self, package: Path = PACKAGE) -> None:
        paths = (path for path in sorted(package.rglob("*.py")) if "_pb2" not in path.name)
        read = (_read(path, package) for path in paths)
        self.modules: Mapping[str, Module] = {module.name: module for module in read}

    @property
    def product(self) -> list[Module]:
        return [module for module in self.modules.values() if module.is_product and module.lines]

    def files(self, names: Iterable[str]) -> int:
        """How many of these have a line to read."""
        return sum(1 for name in names if self.modules[name].lines)

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """Which modules import each one, in whatever way."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            for one in self._modules_of(module.at_start | module.later | module.for_types):
                if one != module.name:
                    found[one].add(module.name)
        return {name: frozenset(those) for name, those in found.items()}

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """These modules and all that they import, at their start or later, with the packages that
        they are in."""
        found: set[str] = set()
        left = [name for name in names if name in self.modules]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                module = self.modules[name]
                parents = [parent for parent in _parents(name) if parent in self.modules]
                left += [*self._modules_of(module.at_start | module.later), *parents]
        return frozenset(found)

    def classes_defined_twice(self) -> Mapping[str, int]:
        """Names of classes of the product, with how often each is defined."""
        counted = Counter(name for module in self.product for name in module.classes)
        return {name: times for name, times in sorted(counted.items()) if times > 1}

    def lines_of(self, names: Iterable[str]) -> int:
        return sum(self.modules[name].lines for name in names)

    def _modules_of(self, written: Iterable[str]) -> Iterator[str]:
        for name in written:
            found = name if name in self.modules else name.rpartition(".")[0]
            if found in self.modules:
                yield found


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _read(path: Path, package: Path) -> Module:
    relative = path.relative_to(package)
    parts = [package.name, *relative.with_suffix("").parts]
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text()
    tree = ast.parse(text)
    imports = _Imports()
    imports.visit(tree)
    return Module(
        name=name,
        path=path,
        room=relative.parts[0] if len(relative.parts) > 1 else TOP,
        lines=len(text.splitlines()),
        classes=tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
        at_start=frozenset(imports.at_start),
        later=frozenset(imports.later),
        for_types=frozenset(imports.for_types),
    )


class _Imports(ast.NodeVisitor):
    """Sorts the imports of a module by when they happen."""

    def __init__(self) -> None:
        self.at_start: set[str] = set()
        self.later: set[str] = set()
        self.for_types: set[str] = set()
        self._into = self.at_start

    def visit_Import(self, node: ast.Import) -> None:
        self._into.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._into.update(f"{node.module}.{alias.name}" for alias in node.names)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._within(node.body, self.later)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        is_for_types = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        self._within(node.body, self.for_types if is_for_types else self._into)
        self._within(node.orelse, self._into)

    def _within(self, body: Iterable[ast.stmt], into: set[str]) -> None:
        before, self._into = self._into, into
        for statement in body:
            self.visit(statement)
        self._into = before
