"""Whatever the bytes are, the answer is plain values or an error with a place and a remedy."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.yaml_files import DEEPEST, LARGEST_BYTES, UnreadableFile, parse_yaml, read_yaml


def values(text: str | bytes) -> list[object]:
    data = text.encode() if isinstance(text, str) else text
    return [document.value for document in parse_yaml(data, "a.yaml")]


def problems(text: str | bytes) -> list[Problem]:
    with pytest.raises(InvalidInput) as raised:
        values(text)
    assert raised.value.subject == "a.yaml"
    return list(raised.value.problems)


def test_documents_are_read_in_order_with_their_lines() -> None:
    found = parse_yaml(b"# a comment\na: 1\n---\n- b\n---\nc\n", "a.yaml")
    assert [(document.value, document.line) for document in found] == [
        ({"a": 1}, 2),
        (["b"], 3),
        ("c", 5),
    ]


@pytest.mark.parametrize(
    "text", ["", "---\n", "---\n---\n", "# only a comment\n", "null", "~\n---\n"]
)
def test_documents_with_nothing_in_them_are_left_out(text: str) -> None:
    assert values(text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("1_000", 1000),
        ("0x10", 16),
        ("017", 15),
        ("1.5", 1.5),
        ("true", True),
        ("no", False),
        ('"7"', "7"),
        ("1e1", "1e1"),
        ("1:30", "1:30"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("!!str 7", "7"),
        ("=", "="),
        ("9" * 71, "9" * 71),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("\ufeffx", "x"),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text: str, value: object) -> None:
    (found,) = values(f"{text}" if text.startswith(("\ufeff", "|")) else f"- {text}\n")
    found = found[0] if isinstance(found, list) else found
    assert found == value
    assert type(found) is type(value)


def test_keys_become_text_as_in_json() -> None:
    assert values("{1: a, true: b, 1.5: c, x: d}") == [
        {"1": "a", "true": "b", "1.5": "c", "x": "d"}
    ]


def test_an_anchor_may_have_any_name() -> None:
    assert values("a: &None 1\nb: [2, *None]\n") == [{"a": 1, "b": [2, 1]}]


def test_aliases_and_merges_are_written_out() -> None:
    text = (
        "base: &base {x: 1, y: 2}\nown: {<<: *base, x: 3}\nmany: {<<: [*base, {y: 5, z:"
        " 6}]}\nquoted: {'<<': 1}\n"
    )
    assert values(text) == [
        {
            "base": {"x": 1, "y": 2},
            "own": {"x": 3, "y": 2},
            "many": {"x": 1, "y": 2, "z": 6},
            "quoted": {"<<": 1},
        }
    ]


BROKEN: tuple[tuple[str | bytes, str, str], ...] = (
    ("a: 1\n\tb: 2\n", "yaml-syntax", "line 2, column 1"),
    ("a: [1, 2\n", "yaml-syntax", "line 2, column 1"),
    ("a: b: c\n", "yaml-syntax", "line 1, column 5"),
    ("a: 1\nb: 2\na: 3\n", "yaml-duplicate-key", "line 3, column 1"),
    ("{1: a, '1': b}", "yaml-duplicate-key", "line 1, column 8"),
    ("? [a]\n: b\n", "yaml-key", "line 1, column 3"),
    ("null: b\n", "yaml-key", "line 1, column 1"),
    ("a: &a [*a]\n", "yaml-alias-recursive", "line 1, column 8"),
    ("&a {x: {y: *a}}\n", "yaml-alias-recursive", "line 1, column 12"),
    ("a: *b\n", "yaml-alias-unknown", "line 1, column 4"),
    ("a: &a 1\nb: &a 2\n", "yaml-anchor-twice", "line 2, column 4"),
    ("a: ! 7\n", "yaml-tag", "line 1, column 4"),
    ("a: !!str [b]\n", "yaml-tag", "line 1, column 4"),
    ("a: !!map b\n", "yaml-tag", "line 1, column 4"),
    ("a: {<<: 1}\n", "yaml-merge", "line 1, column 9"),
    ("a: !!python/object/apply:os.system [ls]\n", "yaml-tag", "line 1, column 4"),
    ("a: !mine 1\n", "yaml-tag", "line 1, column 4"),
    ("a: !!binary aGk=\n", "yaml-tag", "line 1, column 4"),
    ("a: .nan\n", "yaml-number", "line 1, column 4"),
    ("a: -.inf\n", "yaml-number", "line 1, column 4"),
    ("a: 1.0e+999\n", "yaml-number", "line 1, column 4"),
    ("a: 1\nb: \x00\n", "control-character", "line 2, column 4"),
    (b"a: 1\nb: \xff\n", "not-utf-8", "line 2, column 4"),
    ("é: ".encode("utf-16"), "not-utf-8", "line 1, column 1"),
)


@pytest.mark.parametrize(("text", "rule", "where"), BROKEN)
def test_what_cannot_be_read_is_a_problem_with_line_column_and_remedy(
    text: str | bytes, rule: str, where: str
) -> None:
    (found,) = problems(text)
    assert (found.rule, found.where) == (rule, where)
    assert found.remedy


def bomb(levels: int) -> str:
    """A document whose aliases, written out, hold nine to the power of `levels` values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)
    ]
    return "\n".join(lines)


_KEYS = ", ".join(f"k{n}: 1" for n in range(9999))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb(40), id="aliases of aliases"),
        pytest.param("a: &a " + "x" * 2**20 + "\nb: [" + "*a, " * 2**18 + "]", id="long text"),
        pytest.param(f"a: &a {{{_KEYS}}}\nb: [{'{<<: *a}, ' * 9999}]", id="merges"),
        pytest.param("[" + "1," * (LARGEST_BYTES // 2 - 1) + "]", id="values"),
    ],
)
def test_what_grows_without_measure_is_refused_before_it_grows(text: str) -> None:
    started = time.process_time()  # of this process: others may have the machine
    (found,) = problems(text)
    assert found.rule == "yaml-too-many-values"
    assert time.process_time() - started < 20, (
        "seconds are expected; minutes would mean that the limit came too late"
    )


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(opening: str) -> None:
    found = problems(opening * 100_000)
    assert [problem.rule for problem in found] == ["yaml-too-deep"]
    assert values("[" * DEEPEST + "]" * DEEPEST)


def test_a_file_of_another_size_than_yaml_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * LARGEST_BYTES)
    assert read_yaml(str(path)) == ()
    path.write_bytes(b"#" * (LARGEST_BYTES + 1))
    with pytest.raises(InvalidInput, match="is larger than 3 MiB; split it into several files"):
        read_yaml(str(path))


@pytest.mark.parametrize("name", ["n" * 300, "loop"])
def test_what_is_no_file_that_can_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UnreadableFile, match="cannot be read") as raised:
        read_yaml(f"{tmp_path}/{name}")
    assert raised.value.subject == f"{tmp_path}/{name}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_of_somebody_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "private.yaml"
    path.touch(mode=0)
    with pytest.raises(UnreadableFile, match="may not be read by this user"):
        read_yaml(str(path))


# What JSON has and YAML has not: a character beyond U+FFFF as two escapes, and a key of more than
# 1024 characters.
TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=100)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


@given(JSON.filter(lambda value: value is not None))
def test_what_json_writes_is_read_back(value: object) -> None:
    assert values(json.dumps(value)) == [value]


@given(
    st.binary(max_size=200)
    | st.text(alphabet="-[]{}:,&*!|>'\"%@` \n\tab1#?<=.", max_size=60).map(str.encode)
)
def test_any_bytes_are_values_or_an_error_with_a_remedy(data: bytes) -> None:
    found = outcome(data)
    if isinstance(found, InvalidInput):
        assert all(
            problem.where and problem.remedy and str(problem).isprintable()
            for problem in found.problems
        )
    else:
        json.dumps(found, allow_nan=False)


def outcome(data: bytes) -> list[object] | InvalidInput:
    try:
        return values(data)
    except InvalidInput as error:
        return error
