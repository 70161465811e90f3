"""The modules of mpsd, read with `ast` and not imported: their lines, classes and imports.

Left out: what protoc generates (`*_pb2*`), and every file that is not Python. A file without a line
(an empty `__init__.py`) is no file that anybody reads, and is not counted.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import mpsd

PACKAGE = Path(mpsd.__file__).parent
# the rooms that the product's totals leave out
NOT_PRODUCT = frozenset({"simulator", "bench"})
TOP = "(top)"  # the room of what lies in mpsd/ itself


@dataclass(frozen=True, slots=True)
class Module:
    """imports: as they are written, so that some are names inside a module, and without those that
    only a type checker reads."""

    name: str
    room: str
    text: str
    lines: int
    classes: tuple[str, ...]
    imports: frozenset[str]

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

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """These modules and all that they import, at their start or later, with the packages that
        they are in."""
        found: set[str] = set()
        left = [name for name in names if name in self.modules]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                parents = [parent for parent in _parents(name) if parent in self.modules]
                left += [*self._modules_of(self.modules[name].imports), *parents]
        return frozenset(found)

    def classes_defined_twice(self) -> Mapping[str, int]:
        """Names of classes of the product, with how often each is defined."""
        counted = Counter(name for module in self.product for name in module.classes)
        return {name: times for name, times in sorted(counted.items()) if times > 1}

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
    text = path.read_text()
    tree = ast.parse(text)
    return Module(
        name=".".join(parts[:-1] if parts[-1] == "__init__" else parts),
        room=relative.parts[0] if len(relative.parts) > 1 else TOP,
        text=text,
        lines=len(text.splitlines()),
        classes=tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
        imports=frozenset(_imports(tree)),
    )


def _imports(tree: ast.Module) -> Iterator[str]:
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left += node.orelse
        elif not isinstance(node, ast.expr):
            left += ast.iter_child_nodes(node)
