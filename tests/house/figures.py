"""The figures of the house that can be read off its files, each with its aim."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from tests.house.control_imports import control_modules
from tests.house.tree import Module, Tree


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. aim: the most it is to be in the end, None where there is no such number; least:
    likewise."""

    name: str
    value: float
    aim: float | None = None
    least: float | None = None

    @property
    def is_reached(self) -> bool:
        return (self.aim is None or self.value <= self.aim) and (
            self.least is None or self.value >= self.least
        )

    def __str__(self) -> str:
        if self.aim is None:
            return f"{self.name:<62}{self.value:>9,g}"
        aim = (
            f"{self.least:,g} to {self.aim:,g}"
            if self.least is not None
            else f"at most {self.aim:,g}"
        )
        return f"{self.name:<62}{self.value:>9,g}   aim: {aim}" + (
            "" if self.is_reached else "   not yet"
        )


@dataclass(frozen=True, slots=True)
class Room:
    """share: of the product's lines, in percent; 0 for a room outside the product."""

    name: str
    files: int
    lines: int
    share: float

    def __str__(self) -> str:
        share = f"{self.share:>7.1f} %" if self.share else f"{'-':>9}"
        return f"  {self.name:<16}{self.files:>6}{self.lines:>9,}{share}"


def rooms(tree: Tree) -> list[Room]:
    """The first-level folders of mpsd/, the largest first."""
    files, lines = Counter[str](), Counter[str]()
    for module in tree.modules.values():
        files[module.room] += bool(module.lines)
        lines[module.room] += module.lines
    product = {module.room for module in tree.product}
    all_lines = sum(lines[room] for room in product)
    found = [
        Room(
            name,
            files[name],
            lines[name],
            round(100 * lines[name] / all_lines, 1) if name in product else 0.0,
        )
        for name in files
    ]
    return sorted(found, key=lambda room: -room.lines)


def figures(tree: Tree) -> list[Figure]:
    """All that need no run of a request."""
    product = tree.product
    loaded = control_modules()
    reached = [name for name in tree.closure(loaded) if tree.modules[name].is_product]
    return [
        Figure("files, all", tree.files(tree.modules)),
        Figure("lines, all", tree.lines_of(tree.modules)),
        Figure("files without simulator and bench", len(product), 200),
        Figure("lines without simulator and bench", _lines(product), 36_000),
        Figure("largest room, % of these lines", max(room.share for room in rooms(tree)), 15),
        Figure("median file, lines", median(module.lines for module in product), 200, least=130),
        Figure("largest file, lines", max(module.lines for module in product), 450),
        Figure("modules with exactly one importer", len(modules_with_one_importer(tree))),
        Figure("class names defined twice or more", len(tree.classes_defined_twice()), 0),
        Figure("modules that `mpsd control` loads at its start", tree.files(loaded)),
        Figure("lines of these", tree.lines_of(loaded)),
        Figure("modules that `mpsd control` can load where GPUs are real", tree.files(reached), 70),
        Figure("lines of these modules", tree.lines_of(reached)),
    ]


def largest_files(tree: Tree, count: int = 10) -> Mapping[str, int]:
    ordered = sorted(tree.product, key=lambda module: -module.lines)
    return {module.name: module.lines for module in ordered[:count]}


def modules_with_one_importer(tree: Tree) -> Mapping[str, str]:
    """Modules of the product that exactly one module imports, with that one."""
    found = ((module.name, tree.importers[module.name]) for module in tree.product)
    return {name: next(iter(importers)) for name, importers in found if len(importers) == 1}


def _lines(modules: list[Module]) -> int:
    return sum(module.lines for module in modules)
