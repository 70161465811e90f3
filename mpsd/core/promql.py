"""PromQL about metrics of the table.

One rule: a name or a label that the table has not cannot be written, so that a query never asks for what nobody tells.
"""

from collections.abc import Mapping

from mpsd.core.metric import Metric, Teller

JOB, INSTANCE = "job", "instance"  # that Prometheus adds; instance: the name of the node or pod, as we have it scraped
WINDOW = "$window"  # stands for a duration until a query is used

Wanted = str | tuple[str, ...]


def job_of(teller: Teller) -> str:
    """What the scrape configurations call it."""
    return f"mpsd-{teller.value}"


def series(metric: Metric, **wanted: Wanted) -> str:
    """Its series; those that have these labels. A value that is a variable (`$node`), or several: one of these."""
    return metric.name + _matchers(metric, wanted)


def is_up(*tellers: Teller) -> str:
    """1 for what was scraped."""
    return f"up{_braces([_matcher(JOB, tuple(map(job_of, tellers)))])}"


def over_window(function: str, metric: Metric, **wanted: Wanted) -> str:
    """Such as increase."""
    return f"{function}({series(metric, **wanted)}[{WINDOW}])"


def quantile(share: float, metric: Metric, by: tuple[str, ...], **wanted: Wanted) -> str:
    """Of a histogram's observations within the window, by these labels."""
    observed = f"{metric.name}_bucket{_matchers(metric, wanted)}"
    return f"histogram_quantile({share}, sum by ({', '.join(('le', *by))}) (rate({observed}[{WINDOW}])))"


def duration(seconds: int) -> str:
    """As Prometheus writes it, in its largest unit that leaves no rest."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length_s == 0:
            return f"{seconds // length_s}{unit}"
    return f"{seconds}s"


def in_window(query: str, window: str) -> str:
    """The query with the duration that it has been waiting for."""
    return query.replace(WINDOW, window)


def _matchers(metric: Metric, wanted: Mapping[str, Wanted]) -> str:
    unknown = wanted.keys() - {*metric.labels, JOB, INSTANCE}
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}")
    return _braces([_matcher(label, value) for label, value in wanted.items()])


def _braces(matchers: list[str]) -> str:
    return f"{{{', '.join(matchers)}}}" if matchers else ""


def _matcher(label: str, value: Wanted) -> str:
    if isinstance(value, tuple):
        return f'{label}=~"{"|".join(value)}"' if len(value) > 1 else f'{label}="{value[0]}"'
    return f'{label}{"=~" if value.startswith("$") else "="}"{value}"'
