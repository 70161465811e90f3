"""`python -m tests.house`: the figures of mpsd's layout, each beside its aim.

--still leaves out the ways, which run mpsd on a simulated machine.
"""

import argparse

from tests.house.figures import figures, rooms, sizes, style
from tests.house.tree import Tree
from tests.house.ways import way_figures, ways


def main() -> None:
    """Prints everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--still", action="store_true")
    asked = parser.parse_args()
    tree = Tree()
    found = {} if asked.still else dict(ways())
    print(f"  {'room':<16}{'files':>6}{'lines':>9}{'share':>9}   (Python; without *_pb2*)")
    every = [*figures(tree), *sizes(tree), *style(tree), *way_figures(found)]
    print(*rooms(tree), "", *every, sep="\n")
    largest = sorted(tree.product, key=lambda module: -module.lines)[:10]
    print("\nlargest files:", *(f"  {one.lines:>5} {one.name}" for one in largest), sep="\n")
    twice = tree.classes_defined_twice()
    print("\nclasses defined twice or more:", ", ".join(twice) or "none")
    for way, modules in found.items():
        print(f"\nfiles of a {way}:", *(f"  {name}" for name in modules), sep="\n")


if __name__ == "__main__":
    main()
