"""Memory for people.

One rule: what is shown is never more than there is.
"""


def gib(memory_mib: int) -> str:
    """MiB as GiB for people: whole where it is whole, else with one decimal, never rounded up."""
    tenths = memory_mib * 10 // 1024
    return str(tenths // 10) if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}"
