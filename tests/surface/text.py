"""The strings in mpsd's code, less docstrings: where names stand that no table has, such as labels and variables."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.house.tree import Tree


@cache
def strings() -> frozenset[str]:
    """Of the product's modules. What a formatted string fills in is `{}`."""
    return frozenset(
        text for module in Tree().product for text in _strings(ast.parse(module.path.read_text())) if text.strip()
    )


def _strings(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.Constant(value=str(text)):
            yield text
    for child in () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
        yield from _strings(child)


def calls(name: str) -> list[ast.Call]:
    """Every call of a function or class of this name."""
    trees = (ast.parse(module.path.read_text()) for module in Tree().product)
    found = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in found if isinstance(call.func, ast.Name) and call.func.id == name]
