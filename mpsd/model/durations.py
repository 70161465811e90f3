"""How long things last: the units, and how long something has lasted, for people.

One rule: people are told one number and one unit, rounded down, so that it is read at a glance.
"""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_STEPS = (
    (2 * DAY_S, DAY_S, "d"),
    (2 * HOUR_S, HOUR_S, "h"),
    (2 * MINUTE_S, MINUTE_S, "min"),
)  # from so many seconds, in this unit


def lasting(seconds: float) -> str:
    """Such as `40 s`, `5 min`, `3 h` or `12 d`; `0 s` for what lies in the future, since clocks differ."""
    whole = int(max(0.0, min(seconds, 1e12)))
    for least_s, unit_s, unit in _STEPS:
        if whole >= least_s:
            return f"{whole // unit_s} {unit}"
    return f"{whole} s"
