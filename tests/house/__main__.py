"""`python -m tests.house`: the figures of mpsd's layout, each beside its aim."""

from tests.house.figures import figures, rooms, sizes, style
from tests.house.tree import Tree


def main() -> None:
    """Prints everything."""
    tree = Tree()
    print(f"  {'room':<16}{'files':>6}{'lines':>9}{'share':>9}   (Python; without *_pb2*)")
    every = [*figures(tree), *sizes(tree), *style(tree)]
    print(*rooms(tree), "", *every, sep="\n")
    largest = sorted(tree.product, key=lambda module: -module.lines)[:10]
    print("\nlargest files:", *(f"  {one.lines:>5} {one.name}" for one in largest), sep="\n")
    twice = tree.classes_defined_twice()
    print("\nclasses defined twice or more:", ", ".join(twice) or "none")


if __name__ == "__main__":
    main()
