"""Who keeps a place on a port that has only so many.

One rule: whoever has the most places gives one up to who has fewer, so that no address keeps all others out.
"""

from collections import Counter
from collections.abc import Sequence


def who_gives_way(there: Sequence[str], newcomer: str) -> int | None:
    """Which of those who are there goes where there is no place left: the last one of the address that has the most.

    None: the newcomer goes, for nobody would then have more than its address has. there: their addresses, the
    first who came first.
    """
    count = Counter(there)
    if not there or count[(most := max(count, key=lambda one: count[one]))] < count[newcomer] + 2:
        return None
    return max(place for place, address in enumerate(there) if address == most)
