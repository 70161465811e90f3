"""docker's daemon.json with the runtime mpsd, and without it again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.containers.engines.configuration import CONFIGURATIONS, LAUNCHER, Engine
from mpsd.model.problem import InvalidInput

CONFIGURATION = CONFIGURATIONS[Engine.DOCKER]("/etc/docker/daemon.json", LAUNCHER)

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_runtimes = st.dictionaries(st.text().filter(lambda name: name != "mpsd"), _values, max_size=3)
_documents = st.tuples(st.dictionaries(st.text(), _values, max_size=4), st.none() | _runtimes).map(
    lambda both: (
        {**both[0], "runtimes": both[1]} if both[1] is not None else _without(both[0], "runtimes")
    )
)
_texts = st.builds(
    lambda document, indent, is_ascii, end: (
        json.dumps(document, indent=indent, ensure_ascii=is_ascii) + end
    ),
    _documents,
    st.sampled_from([None, 1, 2, 4, "\t"]),
    st.booleans(),
    st.sampled_from(["", "\n", "\n\n"]),
)


def _without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


@given(_texts)
def test_installed_and_taken_out_again_the_file_is_the_same_byte_for_byte(text: str) -> None:
    installed = CONFIGURATION.with_runtime(text)
    assert CONFIGURATION.without_runtime(installed, [text]) == text


@given(_texts)
def test_every_other_key_stays_as_and_where_it_was(text: str) -> None:
    before, after = json.loads(text), json.loads(CONFIGURATION.with_runtime(text))
    assert after["runtimes"].pop("mpsd") == {"path": LAUNCHER}
    assert list(after["runtimes"].items()) == list(before.get("runtimes", {}).items())
    names = [*before] if "runtimes" in before else [*before, "runtimes"]
    assert list(after) == names
    assert _without(after, "runtimes") == _without(before, "runtimes")


@given(_texts)
def test_done_twice_it_changes_nothing(text: str) -> None:
    once = CONFIGURATION.with_runtime(text)
    assert CONFIGURATION.with_runtime(once) == once
    assert CONFIGURATION.has_runtime(once)
    assert not CONFIGURATION.has_runtime(text)


@given(_texts, st.text(), _values)
def test_what_others_wrote_since_stays_and_no_backup_undoes_it(
    text: str, key: str, value: object
) -> None:
    installed = json.loads(CONFIGURATION.with_runtime(text))
    if key == "runtimes" or key in installed:
        return
    left = CONFIGURATION.without_runtime(json.dumps({**installed, key: value}), [text])
    assert left is not None
    said = json.loads(left)
    assert said.pop(key) == value
    before = json.loads(text)
    assert said in (before, _without(before, "runtimes"))


def test_a_file_that_was_not_there_is_gone_again() -> None:
    assert CONFIGURATION.without_runtime(CONFIGURATION.with_runtime(None), []) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"debug": true,}', "line 1, column "),
        ('{"debug": tru', "is not JSON"),
        ("[]", "is not an object"),
        ('{"a": 1, "a": 2}', 'has the key "a" twice in one object'),
        ('{"a": NaN}', "has NaN, which is not a number in JSON"),
        ('{"a": 1e999}', "has a number beyond all bounds"),
        ('{"a": ' + "[" * 100_000, "is nested too deep"),
        ('{"runtimes": ["runc"]}', 'runtimes is ["runc"]: is not an object'),
        (
            '{"runtimes": {"mpsd": {"path": "/opt/other"}}}',
            'runtimes.mpsd.path is "/opt/other": is not the launcher',
        ),
        ('{"runtimes": {"mpsd": {"runtimeType": "io.x"}}}', "is not the launcher"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place_and_a_remedy(
    text: str, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        CONFIGURATION.with_runtime(text)
    assert said in str(refused.value)
    assert all(problem.remedy for problem in refused.value.problems)
