"""Every value of the two limits in a client's environment that was tried on real hardware, and what
it did."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.cuda_limit_parser import (
    Lifted,
    Limited,
    MemoryReading,
    Unset,
    Unusable,
    memory_limit_as_read,
    thread_percent_as_read,
)

A = "GPU-2f9ea7d1-1111-2222-3333-444455556666"
B = "GPU-b09ea7d1-1111-2222-3333-444455556666"
GIB = 1024**3


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("0=2G", 2 * GIB),
        ("0=2g", 2 * GIB),
        ("0=2048M", 2 * GIB),
        ("0=2048m", 2 * GIB),
        ("0=2048MB", 2 * GIB),
        ("0=2Gi", 2 * GIB),
        ("0 = 1G", GIB),
        ("0=1G,", GIB),
        (f"{A}=1G", GIB),
        (f"{A[:12]}=1G", GIB),
        ("0=100G", 100 * GIB),
    ],
)
def test_these_forms_limit(value: str, limit: int) -> None:
    assert memory_limit_as_read(value, [A]) == Limited({0: limit})


@pytest.mark.parametrize(
    "value",
    [
        *("0=2147483648", "0=2097152K", "1G", "0=abc", "0=0", " 0=1G", "0=", "garbage"),
        *("0=1G,1=1G", "1=1G", "5=1G", f"{A}=1G,{B}=1G", f"{B}=1G", f"{A[:11]}=1G"),
    ],
)
def test_these_forms_lift_every_limit_without_a_word(value: str) -> None:
    assert isinstance(memory_limit_as_read(value, [A]), Lifted)


@pytest.mark.parametrize("value", ["0=1.5G", "0=1T", "0=100T"])
def test_these_forms_leave_no_room_for_a_context(value: str) -> None:
    assert isinstance(memory_limit_as_read(value, [A]), Unusable)
    assert memory_limit_as_read("", [A]) == memory_limit_as_read(None, [A]) == Unset()


@pytest.mark.parametrize(("value", "least"), [("0=9G", 9 * GIB), ("0=-1G", 2**63)])
def test_a_larger_limit_stays_under_the_servers(value: str, least: int) -> None:
    reading = memory_limit_as_read(value, [A])
    assert isinstance(reading, Limited)
    assert reading.bytes_by_ordinal[0] >= least


def test_the_ordinal_counts_the_devices_that_the_process_sees() -> None:
    assert memory_limit_as_read("0=3G,1=4G", [A, B]) == Limited({0: 3 * GIB, 1: 4 * GIB})
    assert memory_limit_as_read(f"{B}=1G", [A, B]) == Limited({1: GIB})
    assert memory_limit_as_read("0=1G", [B]) == Limited({0: GIB})
    assert isinstance(memory_limit_as_read("1=1G", [B]), Lifted)


@pytest.mark.parametrize(
    ("value", "percent"),
    [
        ("1", 1),
        ("99", 99),
        *[(value, 100) for value in ("100", "0", "101", "-5", "abc", "nan", "inf", "", None)],
    ],
)
def test_a_percentage_out_of_range_or_none_is_a_hundred(value: str | None, percent: float) -> None:
    assert thread_percent_as_read(value) == percent


@given(st.text() | st.from_regex(re.compile(r"[0-9]?[ =,.GgMmKT0-9-]{0,12}"), fullmatch=True))
def test_any_text_reads_as_one_of_the_four(value: str) -> None:
    reading: MemoryReading = memory_limit_as_read(value, [A, B])
    assert isinstance(reading, Unset | Limited | Lifted | Unusable)
    assert 0 < thread_percent_as_read(value) <= 100


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000 + "9" * 30])
def test_a_number_of_thousands_of_digits_is_beyond_every_limit(digits: str) -> None:
    assert memory_limit_as_read(f"0={digits}M", [A]) == memory_limit_as_read("0=-1G", [A])
    assert isinstance(memory_limit_as_read(f"{digits}=1G", [A]), Lifted)


def test_zeros_before_a_number_count_for_nothing() -> None:
    zeros = "0" * 5000
    assert memory_limit_as_read(f"{zeros}0={zeros}1G", [A]) == Limited({0: GIB})
    assert isinstance(memory_limit_as_read(f"0={zeros}G", [A]), Lifted)
