"""How long daemons took to answer, and kubelet's calls, as Prometheus reads them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from mpsd.kubelet.rules.plugin_calls import Call, CallOutcome, PluginCalls
from mpsd.model.metrics import CALL_BOUNDS_S, COMMAND_BOUNDS_S, METRICS, CommandTimes, Durations, Type, no_durations
from mpsd.status.metrics.rules.samples import Sample, command_samples, plugin_samples, text

TIMES = st.lists(st.floats(0, 100), max_size=30)


def seen(times: Sequence[float], bounds_s: Sequence[float]) -> Durations:
    found = no_durations(bounds_s)
    for took_s in times:
        found = found.with_one(took_s, bounds_s)
    return found


@given(TIMES)
def test_each_bound_counts_what_took_no_longer(times: Sequence[float]) -> None:
    found = seen(times, COMMAND_BOUNDS_S)
    assert found.count == len(times)
    assert found.sum_s == pytest.approx(sum(times))
    for bound, count in found.up_to(COMMAND_BOUNDS_S):
        assert count == sum(took_s <= bound for took_s in times)


def test_a_time_of_a_bounds_own_length_is_within_it() -> None:
    for bound in COMMAND_BOUNDS_S:
        assert seen([bound], COMMAND_BOUNDS_S).counts[bisect_left(COMMAND_BOUNDS_S, bound)] == 1


def test_bounds_grow() -> None:
    for bounds_s in (COMMAND_BOUNDS_S, CALL_BOUNDS_S):
        assert all(one < next_one for one, next_one in pairwise(bounds_s))


@given(st.dictionaries(st.sampled_from(["gpu0", "gpu1", "gpu2-3"]), TIMES), st.integers(0, 5))
def test_what_daemons_took_is_read_as_histograms(times: dict[str, list[float]], unanswered: int) -> None:
    told = {name: CommandTimes("boot", seen(own, COMMAND_BOUNDS_S), unanswered) for name, own in times.items()}
    found = list(command_samples(told))
    families = {one.name: one for one in read_openmetrics(text(found, openmetrics=True) + "# EOF\n")}
    assert set(families) == ({"mpsd_domain_command_seconds", "mpsd_domain_commands_unanswered"} if times else set())
    counts = {one.labels["domain"]: one.value for one in found if one.name == "mpsd_domain_command_seconds_count"}
    assert counts == {name: len(own) for name, own in times.items()}


@given(st.dictionaries(st.sampled_from(Call), TIMES), st.integers(0, 9))
def test_calls_of_kubelet_are_read_by_call_and_outcome(times: dict[Call, list[float]], held_back: int) -> None:
    durations = {call: seen(times.get(call, ()), CALL_BOUNDS_S) for call in Call}
    counts = {(call, outcome): len(times.get(call, ())) for call in Call for outcome in CallOutcome}
    found = list(plugin_samples(PluginCalls(counts, durations, held_back)))
    assert len([*read_openmetrics(text(found, openmetrics=True) + "# EOF\n")]) == 3
    calls = {(one.labels["call"], one.labels["outcome"]) for one in found if one.name == "mpsd_plugin_calls_total"}
    assert calls == {(call.value, outcome.value) for call in Call for outcome in CallOutcome}
    (told,) = [one.value for one in found if one.name == "mpsd_plugin_containers_held_back"]
    assert told == held_back


def test_without_a_kubelet_nothing_is_told_of_one() -> None:
    assert list(plugin_samples(None)) == []


def test_times_that_another_version_counted_by_other_bounds_are_not_told() -> None:
    found = list(command_samples({"gpu0": CommandTimes("boot", Durations((1, 2, 3)), 4)}))
    assert found == [Sample("mpsd_domain_commands_unanswered_total", {"domain": "gpu0"}, 4)]


def test_samples_have_the_labels_of_the_table() -> None:
    calls = PluginCalls({(Call.ALLOCATE, CallOutcome.ANSWERED): 1}, {Call.ALLOCATE: no_durations(CALL_BOUNDS_S)}, 0)
    table = {series: one for one in METRICS for series in one.series}
    for one in (*command_samples({"gpu0": CommandTimes("boot")}), *plugin_samples(calls)):
        metric = table[one.name]
        bucket = {"le"} if metric.type is Type.HISTOGRAM and one.name.endswith("_bucket") else set()
        assert one.labels.keys() == {*metric.labels} | bucket
