"""What the agent answers `mpsd smi`: who uses what of the GPUs now.

One rule: NVML is asked for samples only when somebody asks here: that costs 1.4 ms a GPU with 40 clients
(docs/mps-observed.md, section 7), and every other look does without.
"""

import time
from collections.abc import Mapping

from aiohttp import web

from mpsd.agent.sources import AgentSources
from mpsd.platform.listener import Handler, json_answer
from mpsd.platform.nvml import NvmlFailed
from mpsd.status.rules.use import Busy, use_status

_LATELY_US = 2_000_000  # the driver takes a sample every second at least


class UseApi:
    """Whoever may look at the node may look at this."""

    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /v1/use": self._use}

    async def _use(self, _request: web.Request) -> web.Response:
        since_us = time.time_ns() // 1000 - _LATELY_US
        node = self._sources.node
        busy, unsaid = {}, []
        for gpu in node.gpus:
            try:
                percent = node.nvml.busy_percent(gpu.uuid)
                busy[gpu.uuid] = Busy(percent, node.nvml.sm_percents(gpu.uuid, since_us))
            except NvmlFailed as error:
                unsaid.append(f"how busy {gpu.label} is: {error}")
        return json_answer(use_status(self._sources.agent.look(), self._sources.policy, busy, unsaid))
