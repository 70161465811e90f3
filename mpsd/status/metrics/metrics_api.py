"""The agent's metrics, for whoever serves them: `GET /metrics` on its Unix socket and on the ports for readers.

One rule: a scrape asks neither NVML nor a daemon, however many there are: it tells the last view, and what `mpsd
control` has written beside its records.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from aiohttp import web

from mpsd.agent.agent_sources import AgentSources
from mpsd.kubelet.call_counts import PluginCallBook
from mpsd.mps.command_times import command_times
from mpsd.platform.listener import Handler
from mpsd.status.metrics.rules.metrics_calls import command_samples, plugin_samples
from mpsd.status.metrics.rules.metrics_samples import Sample, samples
from mpsd.status.rules.node_status import node_status

if TYPE_CHECKING:
    from mpsd.status.metrics.agent_metrics import Exposition


class MetricsApi:
    """calls: None without a kubelet."""

    def __init__(self, sources: AgentSources, calls: PluginCallBook | None) -> None:
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
        from mpsd.status.metrics.agent_metrics import Exposition  # only where somebody scrapes

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
