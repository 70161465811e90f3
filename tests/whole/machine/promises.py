"""What is promised of times, tried on a machine that others use as well."""

from collections.abc import Callable

_TRIES = 5


def is_kept_within(promised_s: float, measure: Callable[[], float], tries: int = _TRIES) -> None:
    """measure: does it once more, and says how many seconds that took.

    Whoever has a processor keeps the promise every time; several processes, each of which may wait
    for one while others have them all, keep it in one of a few tries.
    """
    took: list[float] = []
    while not took or took[-1] >= promised_s:
        assert len(took) < tries, (
            f"promised within {promised_s:g} s: {', '.join(f'{one:.3f} s' for one in took)}"
        )
        took.append(measure())
