"""The agent's metrics as Prometheus reads them: those of the node, and those of the agent's process.

One rule: it knows no name, label or value of its own; `model.metrics_names` and `status.metrics.rules.metrics_samples`
say them all."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mpsd.agent.sources import AgentSources
from mpsd.kubelet.rules.plugin_calls import PluginCallCounts
from mpsd.mps.control_daemon import command_times
from mpsd.platform.listener import Handler
from mpsd.status.metrics.rules.samples import Sample, command_samples, plugin_samples, samples, text
from mpsd.status.rules.node_status import node_status

_OPENMETRICS = "application/openmetrics-text"


class Exposition:
    """What every client of Prometheus tells of its process is prometheus_client's, and so is the choice of a format."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self, samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
        """The metrics in the format that the header Accept asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith(_OPENMETRICS)
        if openmetrics and "version=1." not in content_type:  # a later one, whose rules nobody here has read
            encode, content_type = choose_encoder(f"{_OPENMETRICS}; version=1.0.0")
        return text(samples, openmetrics=openmetrics).encode() + encode(self._process), content_type


# The agent's metrics, for whoever serves them: `GET /metrics` on its Unix socket and on the ports for readers.
#
# One rule: a scrape asks neither NVML nor a daemon, however many there are: it tells the last view, and what `mpsd
# control` has written beside its records.


class MetricsApi:
    """calls: None without a kubelet."""

    def __init__(self, sources: AgentSources, calls: PluginCallCounts | None) -> None:
        self._sources = sources
        self._calls = calls

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /metrics": self._show}

    async def _show(self, request: web.Request) -> web.Response:
        body, content_type = self._exposition.text(self._samples(), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    @cached_property
    def _exposition(self) -> "Exposition":
        # only where somebody scrapes

        return Exposition()

    def _samples(self) -> list[Sample]:
        agent = self._sources.agent
        status = node_status(agent.view, self._sources.policy, agent.watchdog.status()) if agent.view else None
        domains = [domain.name for domain in status.domains] if status else ()
        return [
            *samples(status, limits_wrong=self._sources.limits.wrong is not None),
            *command_samples(command_times(self._sources.settings, domains)),
            *plugin_samples(self._calls.now if self._calls else None),
        ]
