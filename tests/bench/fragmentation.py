"""What is left of a nearly full cluster for large pods, by how a node and a GPU are chosen
(tests.scheduler.arrivals).

`python -m tests.bench.fragmentation` runs these rows alone.
"""

from collections.abc import Iterator

from tests.bench.rows import Row, show
from tests.scheduler.arrivals import CHOICES, GPUS, LARGE_GIB, simulate

NODES, PODS = 5000, 20_000


def fragmentation() -> Iterator[tuple[str, Row]]:
    """No limits: while the pods come and go, an assertion fails where a GPU is over its card."""
    found = {choice: simulate(choice, NODES, PODS) for choice in CHOICES}
    first = found["first-fit"]
    about = f"{NODES} nodes × {GPUS} GPUs, {PODS} pods come and go"
    for choice, one in found.items():
        name, shares = choice.replace("-", "_"), one.shares
        yield (
            f"{name}_refused",
            Row(one.refused, "pods", None, first.refused, f"of one GPU, fitting nowhere; {about}"),
        )
        several = Row(
            one.refused_several,
            "pods",
            None,
            first.refused_several,
            "of two GPUs, fitting in no domain",
        )
        yield f"{name}_refused_two", several
        yield (
            f"{name}_used",
            Row(shares.used, "of memory", None, first.shares.used, "of the GPUs that are shared"),
        )
        yield (
            f"{name}_in_use",
            Row(shares.in_use, "GPUs", None, first.shares.in_use, "that hold a pod at all"),
        )
        yield (
            f"{name}_free",
            Row(shares.free_gpus, "GPUs", None, first.shares.free_gpus, "that hold none"),
        )
        large = f"what pods of {LARGE_GIB} GiB could still take of it"
        yield (
            f"{name}_free_large",
            Row(shares.large, "of the free", None, first.shares.large, large),
        )
        whole = "what lies on GPUs that hold no pod"
        yield (
            f"{name}_free_whole",
            Row(shares.whole, "of the free", None, first.shares.whole, whole),
        )


if __name__ == "__main__":
    show(dict(fragmentation()))
