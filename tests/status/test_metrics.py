"""What the agent's metrics say of a node, and that they say nothing of what nobody knows."""

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from mpsd.admission.review_api import WebhookMetrics
from mpsd.model.domain import State
from mpsd.model.grants import Grant
from mpsd.model.identity import HostContainer, PodName
from mpsd.model.metrics import (
    COMMAND_BOUNDS_S,
    METRICS,
    Call,
    CallOutcome,
    CommandTimes,
    Durations,
    Exporter,
    Metric,
    MetricUnit,
    PluginCalls,
    Type,
    exported_by,
    no_durations,
)
from mpsd.model.node_report import (
    CardReport,
    ClientReport,
    DomainReport,
    GpuReport,
    GrantReport,
    NodeReport,
    PodReport,
    ViolationCount,
    ViolationsReport,
)
from mpsd.model.node_view import Client, HeldGrant, NodeView
from mpsd.model.policy import Response
from mpsd.model.times import utc
from mpsd.model.violations import ViolationKind
from mpsd.platform.server_metrics import ServerMetrics
from mpsd.scheduler.api import SchedulerMetrics
from mpsd.status.rules.metrics import Sample, command_samples, plugin_samples, samples, text
from mpsd.status.rules.node_report import node_report
from tests.model.worlds import NOW, POLICY, UUIDS, blind, grant, identity, view
from tests.status.pod_worlds import held_claim, pod

MIB = 1024**2

# Few of each, so that grants and clients meet; and what names may hold at worst.
_UUIDS = st.sampled_from([*UUIDS, "GPU-2", "GPU-\ud800"])
_NAMES = st.sampled_from(["", "train-0", "train-1", "größe", 'with "quotes"\n', "half\ud800"])
_IDS = st.sampled_from(["a", "b", "c"])
_MIBS = st.integers(0, 200_000)
_MAYBE_MIBS = st.none() | _MIBS
_PERCENTS = st.integers(0, 100)

_CARDS = st.lists(
    st.builds(CardReport, _UUIDS, _MIBS, _PERCENTS, _MAYBE_MIBS, st.booleans()),
    max_size=3,
    unique_by=lambda c: c.gpu,
)


_IN_DEFAULT = _NAMES.map("default/{}".format)
_GRANTS = st.builds(
    GrantReport,
    id=_IDS,
    memory_mib=_MIBS,
    thread_percent=_PERCENTS,
    used_mib=_MAYBE_MIBS,
    clients=st.none() | st.integers(0, 8),
    holder_pid=st.none() | st.integers(1, 9),
    ended=st.booleans(),
    pod=st.just("") | _IN_DEFAULT,
    cards=_CARDS.map(tuple),
    container=st.just("") | _IDS,
    container_name=_NAMES,
    claim=st.just("") | _IN_DEFAULT,
    shared_with=st.lists(st.builds(PodReport, pod=_IN_DEFAULT), max_size=3).map(tuple),
).map(lambda one: changed(one, gpus=tuple([card.gpu for card in one.cards])))


_GPUS = st.builds(
    GpuReport,
    uuid=_UUIDS,
    label=_NAMES,
    model=_NAMES,
    domain=_NAMES,
    memory_mib=_MIBS,
    promised_mib=_MIBS,
    granted_mib=_MAYBE_MIBS,
    granted_percent=st.none() | st.integers(0, 400),
    used_mib=_MAYBE_MIBS,
    clients=st.none() | st.integers(0, 60),
    promised_percent=st.none() | st.integers(0, 400),
    promised_clients=st.none() | st.integers(0, 60),
)
_DOMAINS = st.builds(
    DomainReport,
    name=_NAMES,
    state=st.sampled_from([*State]),
    restarts=_MIBS,
    since=st.just(utc(NOW)),
)
_COUNTS = st.builds(
    ViolationCount,
    st.sampled_from([kind.value for kind in ViolationKind]),
    st.sampled_from([action.value for action in Response]),
    st.integers(1, 9),
    st.none() | st.integers(0, 9),
)
_VIOLATIONS = st.builds(
    ViolationsReport,
    looks=_MIBS,
    counts=st.lists(_COUNTS, max_size=4, unique_by=lambda one: (one.kind, one.action)).map(tuple),
    last=st.just(()),
)
_STATUSES = st.builds(
    NodeReport,
    reported_at=st.just(utc(NOW)),
    driver=_NAMES,
    gpus=st.lists(_GPUS, max_size=4, unique_by=lambda one: one.uuid).map(tuple),
    domains=st.lists(_DOMAINS, max_size=3, unique_by=lambda one: one.name).map(tuple),
    grants=st.lists(_GRANTS, max_size=5, unique_by=lambda one: one.id).map(tuple),
    clients=st.none()
    | st.lists(st.builds(ClientReport, gpu=_UUIDS, grant=st.none() | _IDS), max_size=6).map(tuple),
    waiting=st.just(()),
    violations=st.none() | _VIOLATIONS,
)


def told(status: NodeReport | None, *, limits_wrong: bool = False) -> list[Sample]:
    return samples(status, limits_wrong=limits_wrong)


def by_name(status: NodeReport, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """The values of the series that have these labels, by what their other labels say."""
    return {
        tuple(value for label, value in one.labels.items() if label not in labels): one.value
        for one in told(status)
        if one.name == name and labels.items() <= one.labels.items()
    }


def test_names_end_in_their_unit_and_say_their_type() -> None:
    assert len({one.name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert one.family.endswith(one.unit.value), one
        assert one.name.endswith("_total") == (one.type is Type.COUNTER), one
        assert one.name.endswith("_info") == (one.type is Type.INFO), one
        assert one.help.endswith("."), one
        assert one.exporters, one
        assert set(one.name) <= {*string.ascii_lowercase, "_"}, one
        assert one.unit is not MetricUnit.NONE or not one.family.endswith(
            ("_bytes", "_seconds", "_ratio")
        ), one


@given(_STATUSES, st.booleans())
def test_every_sample_is_one_of_the_table_with_its_labels_and_none_is_there_twice(
    status: NodeReport, limits_wrong: bool
) -> None:
    table = {one.name: set(one.labels) for one in METRICS}
    found = told(status, limits_wrong=limits_wrong)
    for one in found:
        assert one.labels.keys() == table[one.name], one
        for value in one.labels.values():
            assert "\ud800" not in value, one  # half of a pair, which UTF-8 cannot have
    assert len({(one.name, *sorted(one.labels.items())) for one in found}) == len(found)


@given(_STATUSES)
def test_what_nobody_knows_has_no_sample(status: NodeReport) -> None:
    grants = []
    for one in status.grants or ():
        cards = tuple([changed(card, used_mib=None) for card in one.cards])
        grants.append(changed(one, used_mib=None, clients=None, cards=cards))
    blind = changed(
        status,
        gpus=tuple([changed(gpu, used_mib=None, clients=None) for gpu in status.gpus]),
        grants=tuple(grants),
        clients=None,
        violations=None,
        grants_known=False,
    )
    unknown = {one.name for one in told(blind)}
    assert not {
        name
        for name in unknown
        if name.startswith(("mpsd_violations", "mpsd_watchdog", "mpsd_nvml"))
    }
    assert not unknown & {
        "mpsd_gpu_used_bytes",
        "mpsd_gpu_granted_bytes",
        "mpsd_gpu_granted_threads_ratio",
        "mpsd_grants",
        *("mpsd_gpu_clients", "mpsd_gpu_clients_outside_mps", "mpsd_gpu_clients_without_grant"),
        *("mpsd_grant_used_bytes", "mpsd_grant_over_limit", "mpsd_grant_clients"),
    }


def held(name: str, gib: int, *, pod: str = "", percent: int = 0, gpu: int = 0) -> Grant:
    made = grant(name, gib, gpu, percent)
    return replace(made, holder=PodName("default", pod, f"uid-of-{name}")) if pod else made


def of(grants: Mapping[Grant, bool], *clients: Client, **fields: object) -> NodeReport:
    seen = view(
        grants=tuple(HeldGrant(one, alive) for one, alive in grants.items()), clients=clients
    )
    changed: NodeView = replace(seen, **fields)  # type: ignore[arg-type]
    return node_report(changed, POLICY)


def client(pid: int, mib: int | None, of_grant: str | None, *, on_mps: bool = True) -> Client:
    return Client(identity(pid), UUIDS[0], mib, on_mps, "train", of_grant)


def test_a_gpu_that_cannot_be_seen_has_no_series_of_use_and_the_others_have() -> None:
    held_there = HeldGrant(held("b", 7, pod="train-1", gpu=1), True)
    held_here = HeldGrant(held("a", 7, pod="train-0"), True)
    seen = view(grants=(held_here, held_there), clients=(client(1, 500, "a"),))
    status = node_report(blind(seen, UUIDS[1]), POLICY)
    for name in (
        *("mpsd_gpu_used_bytes", "mpsd_gpu_unexplained_bytes", "mpsd_gpu_clients"),
        *("mpsd_gpu_clients_outside_mps", "mpsd_gpu_clients_without_grant"),
        *("mpsd_grant_used_bytes", "mpsd_grant_over_limit", "mpsd_grant_clients"),
    ):
        gpus = {one.labels["gpu"] for one in told(status) if one.name == name}
        assert gpus == {"gpu0"}, name
    assert by_name(status, "mpsd_gpu_granted_bytes") == {
        ("gpu0", UUIDS[0]): 7 * 1024 * MIB,
        ("gpu1", UUIDS[1]): 7 * 1024 * MIB,
    }
    assert by_name(status, "mpsd_unknown_things") == {(): 1}


def test_a_pod_is_told_in_bytes_and_ratios_under_its_name() -> None:
    status = of(
        {held("a", 7, pod="train-0", percent=29): True}, client(1, 500, "a"), client(2, 24, "a")
    )
    name = ("gpu0", UUIDS[0], "pod", "default", "train-0", "")
    assert by_name(status, "mpsd_grant_limit_bytes") == {name: 7 * 1024 * MIB}
    assert by_name(status, "mpsd_grant_used_bytes") == {name: 524 * MIB}
    assert by_name(status, "mpsd_grant_clients") == {name: 2}
    assert by_name(status, "mpsd_grant_reserved_threads_ratio") == {name: 0.29}
    assert by_name(status, "mpsd_grant_threads_ratio") == {name: 0.29}
    assert by_name(status, "mpsd_grant_over_limit") == {name: 0}
    assert by_name(status, "mpsd_gpu_granted_bytes", gpu="gpu0") == {(UUIDS[0],): 7 * 1024 * MIB}
    assert by_name(status, "mpsd_gpu_granted_bytes", gpu="gpu1") == {(UUIDS[1],): 0}


def test_who_is_below_normal_is_told_of_pods_and_not_of_programs() -> None:
    below = replace(held("a", 1, pod="batch"), priority=1)
    status = of(
        {below: True, held("b", 1, pod="serve"): True, replace(held("c", 1), priority=1): True}
    )
    found = by_name(status, "mpsd_grant_below_normal", gpu="gpu0", uuid=UUIDS[0], container="")
    assert found == {("pod", "default", "batch"): 1, ("pod", "default", "serve"): 0}


def test_who_is_held_by_a_cgroup_is_told_and_of_programs_whether_all_are() -> None:
    grants = {held("a", 1, pod="capped"): True, held("b", 1): True, held("c", 1): True}
    status = of(grants, capped=frozenset({"a", "b"}))
    found = by_name(status, "mpsd_grant_memory_capped", gpu="gpu0", uuid=UUIDS[0], container="")
    assert found == {("pod", "default", "capped"): 1, ("program", "", ""): 0}


def test_programs_are_told_together_for_their_number_and_pids_know_no_bound() -> None:
    status = of({held("a", 1): True, held("b", 2): False}, client(1, 100, "a"), client(2, 200, "b"))
    assert by_name(status, "mpsd_grant_limit_bytes", holder="program", pod="") == {
        ("gpu0", UUIDS[0], "", ""): 3 * 1024 * MIB
    }
    assert by_name(status, "mpsd_grants", gpu="gpu0") == {
        (UUIDS[0], "pod"): 0,
        (UUIDS[0], "container"): 0,
        (UUIDS[0], "program"): 2,
    }
    assert by_name(status, "mpsd_grant_threads_ratio") == {}


def test_the_use_of_several_is_unknown_where_that_of_one_is() -> None:
    status = of({held("a", 1): True, held("b", 2): True}, client(1, 100, "a"), client(2, None, "b"))
    assert by_name(status, "mpsd_grant_used_bytes") == {}
    assert list(by_name(status, "mpsd_grant_clients").values()) == [2]


def test_a_container_is_told_by_its_name_and_only_while_it_lives() -> None:
    container = HostContainer("/run/runc", "6f" * 32, "web", identity(50), True)
    own = replace(held("a", 4), holder=container)
    assert list(by_name(of({own: True}), "mpsd_grant_limit_bytes")) == [
        ("gpu0", UUIDS[0], "container", "", "", "web")
    ]
    assert by_name(of({own: False}), "mpsd_grant_limit_bytes") == {}


def test_every_pod_of_a_claim_is_told_with_it_while_the_claim_is_held() -> None:
    shared = held_claim("share", pod("a"), pod("b"))
    info = by_name(of({shared.grant: True, held("c", 2): True}), "mpsd_grant_claim_info")
    assert info == {("default", "a", "share"): 1, ("default", "b", "share"): 1}
    assert by_name(of({shared.grant: False}), "mpsd_grant_claim_info") == {}


def test_processes_beside_mps_and_without_a_grant_are_counted() -> None:
    status = of(
        {held("a", 1): True},
        client(1, 100, "a"),
        client(2, 200, None),
        client(3, 5, None, on_mps=False),
    )
    for name, count in (("clients", 3), ("clients_outside_mps", 1), ("clients_without_grant", 2)):
        assert by_name(status, f"mpsd_gpu_{name}", gpu="gpu0") == {(UUIDS[0],): count}
    unsure = of({}, client(2, 200, None), grants_known=False)
    assert by_name(unsure, "mpsd_gpu_clients_without_grant") == {}


def test_a_domain_is_in_one_state() -> None:
    states = by_name(of({}), "mpsd_domain_state", domain="gpu0")
    assert states == {(state.value,): float(state is State.READY) for state in State}


def test_what_has_not_happened_is_known_to_be_none_and_what_has_is_counted() -> None:
    counts = (ViolationCount("memory_over_grant", "kill", 3),)
    seen = ViolationsReport(looks=9, longest_pause_s=0.3, late_looks=1, nvml_s=0.5, counts=counts)
    status = changed(of({}), violations=seen)
    found = by_name(status, "mpsd_violations_total")
    assert len(found) == len(ViolationKind) * len(Response)
    assert {what: value for what, value in found.items() if value} == {
        ("memory_over_grant", "kill"): 3
    }
    assert ("memory_over_grant", "kill") not in by_name(status, "mpsd_violations_ended_total")


# How long daemons took to answer, and kubelet's calls, as Prometheus reads them.

TIMES = st.lists(st.floats(0, 100) | st.sampled_from(COMMAND_BOUNDS_S), max_size=30)


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


@given(st.dictionaries(st.sampled_from(["gpu0", "gpu1", "gpu2-3"]), TIMES), st.integers(0, 5))
def test_what_daemons_took_is_read_as_histograms(
    times: dict[str, list[float]], unanswered: int
) -> None:
    told = {
        name: CommandTimes("boot", seen(own, COMMAND_BOUNDS_S), unanswered)
        for name, own in times.items()
    }
    found = list(command_samples(told))
    families = {
        one.name: one for one in read_openmetrics(text(found, openmetrics=True) + "# EOF\n")
    }
    assert set(families) == (
        {"mpsd_domain_command_seconds", "mpsd_domain_commands_unanswered"} if times else set()
    )
    counts = {
        one.labels["domain"]: one.value
        for one in found
        if one.name == "mpsd_domain_command_seconds_count"
    }
    assert counts == {name: len(own) for name, own in times.items()}


@given(st.dictionaries(st.sampled_from(Call), TIMES), st.integers(0, 9))
def test_calls_of_kubelet_are_read_by_call_and_outcome(
    times: dict[Call, list[float]], held_back: int
) -> None:
    book = PluginCalls(lambda: 0.0)
    for call, own in times.items():
        for took_s in own:
            book.note(call, (), CallOutcome.ANSWERED, took_s)
    for number in range(held_back):
        book.note(Call.PRE_START, (f"a/{number}",), CallOutcome.HELD_BACK, 0.1)
    found = list(plugin_samples(book))
    assert len([*read_openmetrics(text(found, openmetrics=True) + "# EOF\n")]) == 3
    calls = {
        (one.labels["call"], one.labels["outcome"])
        for one in found
        if one.name == "mpsd_plugin_calls_total"
    }
    assert calls == {(call.value, outcome.value) for call in Call for outcome in CallOutcome}
    (told,) = [one.value for one in found if one.name == "mpsd_plugin_containers_held_back"]
    assert told == held_back


def test_times_that_another_version_counted_by_other_bounds_are_not_told() -> None:
    found = list(command_samples({"gpu0": CommandTimes("boot", Durations((1, 2, 3)), 4)}))
    assert found == [Sample("mpsd_domain_commands_unanswered_total", {"domain": "gpu0"}, 4)]


@pytest.mark.parametrize(("state", "value"), [("", 0), ("drain-required", 1)])
def test_an_upgrade_of_the_driver_is_told_with_its_state(state: str, value: int) -> None:
    status = NodeReport(driver="580")
    found = samples(status, limits_wrong=False, upgrade_state=state)
    assert Sample("mpsd_driver_upgrade", {"state": state}, value) in found


def test_samples_have_the_labels_of_the_table() -> None:
    table = {series: one for one in METRICS for series in one.series}
    for one in (
        *command_samples({"gpu0": CommandTimes("boot")}),
        *plugin_samples(PluginCalls(lambda: 0.0)),
    ):
        metric = table[one.name]
        bucket = {"le"} if metric.type is Type.HISTOGRAM and one.name.endswith("_bucket") else set()
        assert one.labels.keys() == {*metric.labels} | bucket


# What is written of the metrics is read back the same by the parsers of Prometheus's own library.

AGENTS = exported_by(Exporter.AGENT)
_ODD = 'a"b\\c\nd\\n'  # it would end its line or its quotes
_TEXTS = st.just(_ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_VALUES = st.integers(0, 2**53) | st.floats(0, allow_infinity=False) | st.booleans()


@st.composite
def _samples(draw: st.DrawFn) -> Sequence[Sample]:
    """Of some metrics of the table, and of each some series; as in an answer, no series is there
    twice."""
    found: dict[tuple[str, ...], Sample] = {}
    for metric in draw(
        st.lists(
            st.sampled_from([one for one in AGENTS if one.type is not Type.HISTOGRAM]),
            max_size=6,
            unique_by=lambda one: one.name,
        )
    ):
        for _series in range(draw(st.integers(1, 3))):
            labels = {name: draw(_TEXTS) for name in metric.labels}
            value = 1 if metric.type is Type.INFO else draw(_VALUES)
            found[metric.name, *labels.values()] = Sample(metric.name, labels, value)
    return tuple(found.values())


def as_read(families: Iterable[Family]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {
        (one.name, frozenset(one.labels.items()), one.value)
        for family in families
        for one in family.samples
    }


def as_told(found: Iterable[Sample]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {(one.name, frozenset(one.labels.items()), float(one.value)) for one in found}


@given(_samples())
def test_both_formats_are_read_back_the_same(found: Sequence[Sample]) -> None:
    assert as_read(read_text(text(found, openmetrics=False))) == as_told(found)
    assert as_read(read_openmetrics(text(found, openmetrics=True) + "# EOF\n")) == as_told(found)


def test_every_metric_says_its_type_its_unit_and_its_meaning() -> None:
    """In the text format counters and infos keep their whole names."""
    found = [one for metric in AGENTS for one in some_of(metric)]
    openmetrics = text(found, openmetrics=True) + "# EOF\n"
    families = {family.name: family for family in read_openmetrics(openmetrics)}
    told = text(found, openmetrics=False)
    for metric in AGENTS:
        family = families[metric.family]
        said = family.type, family.unit, family.documentation
        assert said == (metric.type, metric.unit, metric.help)
        kind = "gauge" if metric.type is Type.INFO else metric.type
        assert f"# TYPE {metric.name} {kind}\n" in told
        assert f"# HELP {metric.name} {metric.help}\n" in told


def _registering() -> WebhookMetrics:
    made = WebhookMetrics()
    made.registered(well=True)
    return made


@pytest.mark.parametrize(
    ("exporter", "served"),
    [(Exporter.WEBHOOK, _registering()), (Exporter.SCHEDULER, SchedulerMetrics())],
)
def test_what_servers_of_a_cluster_tell_is_all_that_the_table_has_of_them(
    exporter: Exporter, served: ServerMetrics
) -> None:
    families = read_openmetrics(generate_latest(served.registry).decode())
    ours = {(one.family, one.type.value, one.help) for one in exported_by(exporter)}
    assert ours == {
        (one.name, one.type, one.documentation) for one in families if one.name.startswith("mpsd_")
    }


def some_of(metric: Metric) -> Sequence[Sample]:
    labels = dict.fromkeys(metric.labels, "x")
    if metric.type is Type.HISTOGRAM:
        bucket, total, count = metric.series
        return (
            Sample(bucket, {**labels, "le": "+Inf"}, 1),
            Sample(total, labels, 0.5),
            Sample(count, labels, 1),
        )
    return (Sample(metric.name, labels, 1),)
