"""How long something has lasted, for people.

One rule: one number and one unit, rounded down, so that it is read at a glance.
"""

_STEPS = ((48 * 3600, 24 * 3600, "d"), (2 * 3600, 3600, "h"), (120, 60, "min"))  # from so many seconds, in this unit


def lasting(seconds: float) -> str:
    """Such as `40 s`, `5 min`, `3 h` or `12 d`; `0 s` for what lies in the future, since clocks differ."""
    whole = int(max(0.0, min(seconds, 1e12)))
    for least_s, unit_s, unit in _STEPS:
        if whole >= least_s:
            return f"{whole // unit_s} {unit}"
    return f"{whole} s"
