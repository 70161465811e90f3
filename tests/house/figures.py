"""The figures of the house that can be read off its files, each with its aim."""

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.house.control_imports import control_modules
from tests.house.tree import Module, Tree

_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. aim: the most it is to be in the end, None where there is no such number."""

    name: str
    value: float
    aim: int | None = None

    def __str__(self) -> str:
        told = f"{self.name:<62}{round(self.value, 1):>9,}"
        if self.aim is None:
            return told
        return f"{told}   aim: at most {self.aim:,}" + "   not yet" * (self.value > self.aim)


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
    files = Counter[str]()
    lines = Counter[str]()
    for module in tree.modules.values():
        files[module.room] += bool(module.lines)
        lines[module.room] += module.lines
    product = {module.room for module in tree.product}
    percent = 100 / _lines(tree.product)
    shares = {name: round(percent * lines[name], 1) for name in product}
    found = [Room(name, files[name], lines[name], shares.get(name, 0.0)) for name in files]
    return sorted(found, key=lambda room: -room.lines)


def figures(tree: Tree) -> list[Figure]:
    """Those that have a limit."""
    product = tree.product
    reached = tree.closure(control_modules())
    names = [name for name in reached if tree.modules[name].is_product]
    return [
        Figure("files without simulator and bench", len(product), 200),
        Figure("lines without simulator and bench", _lines(product), 42_000),
        Figure("largest room, % of these lines", max(one.share for one in rooms(tree)), 15),
        Figure("class names defined twice or more", len(tree.classes_defined_twice()), 0),
        Figure("modules that `mpsd control` can load where GPUs are real", tree.files(names), 70),
    ]


def sizes(tree: Tree) -> list[Figure]:
    """How much there is to read of the product, beside it, and of tests."""
    beside = [module for module in tree.modules.values() if not module.is_product]
    tests = [path.read_text() for path in _TESTS.rglob("*.py")]
    characters = _characters(one.text for one in tree.product)
    return [
        Figure("characters without simulator and bench", characters, 1_500_000),
        Figure("lines of simulator and bench", _lines(beside)),
        Figure("characters of simulator and bench", _characters(one.text for one in beside)),
        Figure("lines of tests", sum(len(text.splitlines()) for text in tests), 62_000),
        Figure("characters of tests", _characters(tests), 2_250_000),
        Figure("largest file, lines", max(module.lines for module in tree.product), 450),
    ]


def style(tree: Tree) -> list[Figure]:
    """How dense the product's lines are, and how many files know of what one room is about."""
    texts = [module.text for module in tree.product]
    nodes = Counter(_kind(node) for text in texts for node in ast.walk(ast.parse(text)))
    thousands = _lines(tree.product) / 1000
    wide = sum(len(line) > 100 for text in texts for line in text.splitlines())
    return [
        Figure("comprehensions in 1 000 lines", nodes["comprehension"] / thousands, 30),
        Figure("ternaries in 1 000 lines", nodes["IfExp"] / thousands, 15),
        Figure("assignments of tuples in 1 000 lines", nodes["tuple"] / thousands),
        Figure("lines over 100 wide", wide, 0),
        Figure("files that name memory_cap", sum("memory_cap" in text for text in texts)),
        Figure("files that name shared_with", sum("shared_with" in text for text in texts)),
    ]


def _kind(node: ast.AST) -> str:
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return "comprehension"
    if isinstance(node, ast.comprehension):
        return "loop of a comprehension"
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        return "tuple" if isinstance(node.targets[0], ast.Tuple) else "Assign"
    return type(node).__name__


def _characters(texts: Iterable[str]) -> int:
    """Without blanks."""
    return sum(len("".join(text.split())) for text in texts)


def _lines(modules: list[Module]) -> int:
    return sum(module.lines for module in modules)
