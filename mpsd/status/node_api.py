"""What the agent serves of its node: `GET /metrics` for Prometheus, and `GET /v1/use` for `mpsd
smi` and `mpsd top`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from aiohttp import web

from mpsd.agent.sources import AgentSources
from mpsd.model.metrics import Exporter, LogLoss, PluginCalls
from mpsd.mps.control_daemon import command_times
from mpsd.mps.records import read_of_this_boot
from mpsd.platform import clock, logs
from mpsd.platform.listener import Handler, json_answer
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.records import UnreadableRecord
from mpsd.status.rules.metrics import (
    Sample,
    command_samples,
    log_samples,
    plugin_samples,
    samples,
    text,
)
from mpsd.status.rules.node_report import node_report
from mpsd.status.rules.use import Busy, use_report

_OPENMETRICS = "application/openmetrics-text"


class Exposition:
    def __init__(self) -> None:
        # 1 MiB that nobody needs who is not scraped
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self, samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith(_OPENMETRICS)
        # a later one, whose rules nobody here has read
        if openmetrics and "version=1." not in content_type:
            encode, content_type = choose_encoder(f"{_OPENMETRICS}; version=1.0.0")
        return text(samples, openmetrics=openmetrics).encode() + encode(self._process), content_type


class MetricsApi:
    """calls: None without a kubelet. A scrape asks neither NVML nor a daemon."""

    def __init__(self, sources: AgentSources, calls: PluginCalls | None) -> None:
        self._sources = sources
        self._calls = calls
        self._exposition: Exposition | None = None  # until somebody scrapes

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /metrics": self._show}

    async def _show(self, request: web.Request) -> web.Response:
        agent = self._sources.agent
        status = None
        domains = []
        if agent.view:
            status = node_report(agent.view, self._sources.policy, agent.watchdog.violations())
            domains = [domain.name for domain in status.domains]
        found = [
            *samples(
                status,
                limits_wrong=self._sources.limits.wrong is not None,
                upgrade_state=self._sources.upgrade_state(),
            ),
            *command_samples(command_times(self._sources.settings, domains)),
            *plugin_samples(self._calls),
            *log_samples(self._log_lines_dropped()),
        ]
        self._exposition = self._exposition or Exposition()
        body, content_type = self._exposition.text(found, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _log_lines_dropped(self) -> Mapping[str, int]:
        """Of `mpsd control` only where it is a process of its own."""
        dropped = {Exporter.AGENT.value: logs.dropped()}
        with suppress(UnreadableRecord):
            if kept := read_of_this_boot(self._sources.settings.log_loss, LogLoss):
                dropped["control"] = kept.dropped
        return dropped


class UseApi:
    """Who uses what of the GPUs now. NVML is asked for samples only here: that costs 1.4 ms a GPU
    with 40 clients (docs/mps-observed.md, section 7).
    """

    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /v1/use": self._use}

    async def _use(self, _request: web.Request) -> web.Response:
        # the driver takes a sample every second at least
        since_us = int(clock.wall_s() * 1e6) - 2_000_000
        node = self._sources.node
        busy = {}
        unknown = []
        parts = []
        for gpu in node.gpus:
            if gpu.instance:
                parts.append(gpu.label)
                continue
            try:
                percent = node.nvml.busy_percent(gpu.uuid)
                busy[gpu.uuid] = Busy(percent, node.nvml.sm_percents(gpu.uuid, since_us))
            except NvmlFailed as error:
                unknown.append(f"how busy {gpu.label} is: {error}")
        if parts:
            each = ", ".join(parts)
            unknown.append(f"how busy MIG instances are, which NVML does not report: {each}")
        return json_answer(
            use_report(self._sources.agent.look(), self._sources.policy, busy, unknown)
        )
