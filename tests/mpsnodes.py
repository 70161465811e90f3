"""The MPSNodes in tests/data/mpsnodes, told at about NOW.

gpu-a1 is well; gpu-a2 has a GPU that is cordoned, one whose daemon is down and a domain of two;
gpu-b1 has been silent for 88 minutes; nobody has told anything of gpu-b2.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from mpsd.model.times import seconds, stamp

FOLDER = Path(__file__).parent / "data" / "mpsnodes"
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))
NOW = seconds("2026-11-21T08:30:00Z") or 0.0


def mpsnode(name: str, now: float = NOW) -> Any:
    """One of them, as if it were `now`."""
    return _shifted(_read(name), now - NOW)


@cache
def _read(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def _shifted(value: Any, by_s: float) -> Any:
    match value:
        case dict():
            return {name: _shifted(inner, by_s) for name, inner in value.items()}
        case list():
            return [_shifted(inner, by_s) for inner in value]
        case str():
            at = seconds(value)
            return value if at is None else stamp(at + by_s)
        case _:
            return value


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-(2**70), 2**63])
    | st.builds(pow, st.just(10), st.just(5000))  # no repr() of it may be asked for
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "all",
            "a/b",
            "gpu0",
            "2026-11-21T08:30:00Z",
            "9999-99-99T00:00:00Z",
            "0001-01-01T00:00:00+14:00",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A real MPSNode with anything at all in some of its places, or anything at all."""
    thing: Any = mpsnode(draw(st.sampled_from(NAMES)))
    for _time in range(draw(st.integers(0, 3))):
        at = thing
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], dict | list) or draw(st.integers(0, 3)) == 0:
                at[key] = draw(anything)
                break
            at = at[key]
    return thing if draw(st.booleans()) else draw(anything)
