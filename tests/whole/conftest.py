"""In which order xdist hands out these files, each as a whole."""

from collections import Counter

import pytest

# Of few tests, each of which takes long.
_LONGEST = ("bench/test_groups.py", "cli/test_bench.py", "node/test_random_claims.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that none is still at it when all others are done."""
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (not str(item.path).endswith(_LONGEST), -tests[item.path]))
