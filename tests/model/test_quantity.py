"""What a person may write for an amount, and what they are told when they may not."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.problem import Problem
from mpsd.model.quantity import QuantityUnit, memory_unit, whole_units, written_mib

GIB = memory_unit(1024)
PERCENT = QuantityUnit("percent", 30)


def read(value: object, unit: QuantityUnit = GIB) -> int | Problem:
    return whole_units(value, "limits[aliyun.com/gpu-mem]", unit)


def refused(value: object, unit: QuantityUnit = GIB) -> Problem:
    problem = read(value, unit)
    assert isinstance(problem, Problem), problem
    return problem


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (7, 7),
        ("7", 7),
        ("07", 7),
        ("7.0", 7),
        ("7000m", 7),
        ("7000000000n", 7),
        ("1k", 1000),
        ("70e-1", 7),
        (".5e1", 5),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_kubernetes_grammar_is_read(value: object, units: int) -> None:
    assert read(value) == units


@pytest.mark.parametrize(
    ("value", "shown", "rule", "remedy"),
    [
        ("7.5", '"7.5"', "quantity-fraction", "write whole GiB, such as 8"),
        (7.5, "7.5", "quantity-fraction", "write whole GiB, such as 8"),
        ("1e-999999999", '"1e-999999999"', "quantity-fraction", "write whole GiB, such as 1"),
        (-1, "-1", "quantity-below-one", "write 1 GiB or more, or nothing"),
        ("-1e999999999", '"-1e999999999"', "quantity-below-one", "write 1 GiB or more, or nothing"),
        ("0e999999999", '"0e999999999"', "quantity-below-one", "write 1 GiB or more, or nothing"),
        ("40Gb", '"40Gb"', "quantity-malformed", "write whole GiB, such as 40"),
        (" 7", '" 7"', "quantity-malformed", "write whole GiB, such as 7"),
        ("7\n", '"7\\n"', "quantity-malformed", "write whole GiB, such as 7"),
        ("٧", '"٧"', "quantity-malformed", "write whole GiB, such as 7"),
        (True, "true", "quantity-malformed", "write whole GiB, such as 7"),
        ({"a": 7}, '{"a": 7}', "quantity-malformed", "write whole GiB, such as 7"),
        (float("inf"), "Infinity", "quantity-malformed", "write whole GiB, such as 7"),
        ("1e999999999", '"1e999999999"', "quantity-too-large", "write whole GiB, such as 7"),
        (2**63, "9223372036854775808", "quantity-too-large", "write whole GiB, such as 7"),
        ("4Gi", '"4Gi"', "quantity-has-a-unit", "write 4"),
        ("4096Mi", '"4096Mi"', "quantity-has-a-unit", "write 4"),
        ("500Mi", '"500Mi"', "quantity-has-a-unit", "write 1"),
    ],
)
def test_what_is_no_whole_number_of_units_is_refused_with_its_value_and_a_remedy(
    value: object, shown: str, rule: str, remedy: str
) -> None:
    problem = refused(value)
    assert (problem.value, problem.rule, problem.remedy) == (shown, rule, remedy)
    assert problem.where == "limits[aliyun.com/gpu-mem]"


def test_a_size_in_bytes_is_only_a_large_number_where_the_unit_is_no_memory() -> None:
    assert read("1Ki", PERCENT) == 1024
    assert refused("30%", PERCENT).remedy == "write whole percent, such as 30"


@pytest.mark.parametrize(
    "value", ["1" * 100_000, "1e" + "9" * 60, pytest.param(10**5000, id="5001 digits"), 1e308]
)
def test_huge_numbers_cost_nothing(value: object) -> None:
    problem = refused(value)
    assert problem.rule in {"quantity-malformed", "quantity-too-large", "quantity-has-a-unit"}
    assert len(problem.value) <= 60


def test_units_of_other_sizes_are_named() -> None:
    assert memory_unit(1).name == "MiB"
    assert memory_unit(256).name == "units of 256 MiB"
    assert memory_unit(2048).name == "units of 2 GiB"
    assert refused("4Gi", memory_unit(256)).remedy == "write 16"


@given(st.integers(min_value=1, max_value=2**63 - 1))
def test_every_way_to_write_a_whole_number_is_that_number(number: int) -> None:
    assert {read(number), read(str(number)), read(f"{number}000m"), read(f"{number}e0")} == {number}


@given(st.integers(min_value=0, max_value=10**12), st.integers(min_value=-12, max_value=12))
def test_an_exponent_is_a_power_of_ten(number: int, exponent: int) -> None:
    exact = Fraction(number) * Fraction(10) ** exponent
    whole = exact.denominator == 1 and 1 <= exact <= 2**63 - 1
    assert (
        read(f"{number}e{exponent}") == exact
        if whole
        else isinstance(read(f"{number}e{exponent}"), Problem)
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_value_is_a_number_from_one_or_one_problem(value: object) -> None:
    reading = read(value)
    assert (
        (reading >= 1)
        if isinstance(reading, int)
        else (reading.remedy and len(reading.value) <= 60)
    )


@given(
    st.from_regex(
        re.compile(r"[+-]?[0-9.]{1,30}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,30}"), fullmatch=True
    )
)
def test_what_resembles_a_quantity_is_read_or_refused_too(value: str) -> None:
    assert isinstance(read(value), int | Problem)


# Memory as `mpsd set` takes it.


@pytest.mark.parametrize(
    ("text", "mib"),
    [("3276", 3276), ("3276 Mi", 3276), ("6GiB", 6144), ("6.5Gi", 6656)],
)
def test_what_is_written_is_read_in_mib(text: str, mib: int) -> None:
    assert written_mib(text, "--mem") == mib


@pytest.mark.parametrize("text", ["", "0", "0.3GiB", "6GB", "1e3", "1_000", "٣", "9" * 40])
def test_what_is_no_amount_or_not_whole_mib_is_a_problem_with_the_remedy(text: str) -> None:
    found = written_mib(text, "--mem")
    assert isinstance(found, Problem)
    assert found.remedy.startswith("write ")


@given(st.text(max_size=30))
def test_whatever_is_written_is_an_amount_or_a_problem(text: str) -> None:
    found = written_mib(text, "--mem")
    assert isinstance(found, Problem) or found >= 1
