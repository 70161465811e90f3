"""`python -m tests.house`: the figures of mpsd's layout, each beside its aim. It takes some 20 s.

--json prints all of it for programs. --still leaves out the ways, which run mpsd on a simulated
machine.
"""

import argparse
import json
from dataclasses import asdict

from tests.house.figures import figures, largest_files, modules_with_one_importer, rooms
from tests.house.tree import Tree
from tests.house.ways import way_figures, ways


def main() -> None:
    """Prints everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--still", action="store_true")
    asked = parser.parse_args()
    tree = Tree()
    found = {} if asked.still else dict(ways())
    every = figures(tree) + way_figures(found)
    one_importer, twice = modules_with_one_importer(tree), tree.classes_defined_twice()
    if asked.json:
        details = {
            "largest": largest_files(tree),
            "one_importer": one_importer,
            "twice": twice,
            "ways": found,
        }
        shown = {
            "rooms": [asdict(room) for room in rooms(tree)],
            "figures": [asdict(one) for one in every],
            **details,
        }
        print(json.dumps(shown, indent=1))
        return
    print(f"  {'room':<16}{'files':>6}{'lines':>9}{'share':>9}   (Python; without *_pb2*)")
    for room in rooms(tree):
        print(room)
    print()
    for figure in every:
        print(figure)
    print(
        "\nlargest files:",
        *(f"  {lines:>5} {name}" for name, lines in largest_files(tree).items()),
        sep="\n",
    )
    print(
        "\nclasses defined twice or more:",
        ", ".join(f"{name} ×{times}" for name, times in twice.items()) or "none",
    )
    for way, modules in found.items():
        print(f"\nfiles of a {way}:", *(f"  {name}" for name in modules), sep="\n")


if __name__ == "__main__":
    main()
