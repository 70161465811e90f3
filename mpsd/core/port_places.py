"""Who keeps a place where there are only so many: on a port, or among the readers of the page.

One rule: whoever has the most places gives one up to who has fewer, so that nobody keeps all others out.
"""

from collections import Counter
from collections.abc import Sequence


def who_gives_way(there: Sequence[str], newcomer: str) -> int | None:
    """Which of those who are there goes where there is no place left: the last one of whoever has the most.

    None: the newcomer goes, for nobody would then have more than it has. there: whose each place is (an address, a
    user), the first who came first.
    """
    count = Counter(there)
    if not there or count[(most := max(count, key=lambda one: count[one]))] < count[newcomer] + 2:
        return None
    return max(place for place, address in enumerate(there) if address == most)
