"""What is written of the metrics is read back the same by the parsers of Prometheus's own library."""

from collections.abc import Callable, Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from mpsd.model.metrics import Metric, Teller, Type, told_by
from mpsd.status.metrics.rules.samples import Sample, text

AGENTS = told_by(Teller.AGENT)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_VALUES = st.integers(0, 2**53) | st.floats(0, allow_infinity=False) | st.booleans()


@st.composite
def _samples(draw: st.DrawFn) -> Sequence[Sample]:
    """Of some metrics of the table, and of each some series; as in an answer, no series is there twice."""
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
    return {(one.name, frozenset(one.labels.items()), one.value) for family in families for one in family.samples}


def as_told(found: Iterable[Sample]) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {(one.name, frozenset(one.labels.items()), float(one.value)) for one in found}


@given(_samples())
def test_the_text_format_is_read_back_the_same(found: Sequence[Sample]) -> None:
    assert as_read(read_text(text(found, openmetrics=False))) == as_told(found)


@given(_samples())
def test_openmetrics_is_read_back_the_same(found: Sequence[Sample]) -> None:
    assert as_read(read_openmetrics(text(found, openmetrics=True) + "# EOF\n")) == as_told(found)


def test_every_metric_says_its_type_its_unit_and_its_meaning_in_openmetrics() -> None:
    told = text([one for metric in AGENTS for one in some_of(metric)], openmetrics=True)
    families = {family.name: family for family in read_openmetrics(told + "# EOF\n")}
    for metric in AGENTS:
        family = families[metric.family]
        assert (family.type, family.unit, family.documentation) == (metric.type, metric.unit, metric.help)


def test_a_counter_and_an_info_keep_their_whole_names_in_the_text_format() -> None:
    told = text([one for metric in AGENTS for one in some_of(metric)], openmetrics=False)
    for metric in AGENTS:
        kind = "gauge" if metric.type is Type.INFO else metric.type
        assert f"# TYPE {metric.name} {kind}\n" in told
        assert f"# HELP {metric.name} {metric.help}\n" in told


def test_a_name_that_would_end_its_line_or_its_quotes_does_not() -> None:
    read: Callable[[str], Iterable[Family]]
    odd = 'a"b\\c\nd\\n'
    sample = Sample("mpsd_driver_info", {"version": odd}, 1)
    for read, ending in ((read_text, ""), (read_openmetrics, "# EOF\n")):
        (family,) = read(text([sample], openmetrics=bool(ending)) + ending)
        assert [one.labels for one in family.samples] == [{"version": odd}]


def some_of(metric: Metric) -> Sequence[Sample]:
    labels = dict.fromkeys(metric.labels, "x")
    if metric.type is Type.HISTOGRAM:
        bucket, total, count = metric.series
        return Sample(bucket, {**labels, "le": "+Inf"}, 1), Sample(total, labels, 0.5), Sample(count, labels, 1)
    return (Sample(metric.name, labels, 1),)
