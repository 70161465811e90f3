"""The agent's metrics, for whoever serves them: `GET /metrics` on its Unix socket and on the ports for readers.

One rule: a scrape looks at nothing: it tells the last view, so that no number of scrapes loads NVML or the daemons.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from aiohttp import web

from mpsd.core.metrics_samples import Sample, samples
from mpsd.core.node_status import node_status
from mpsd.core.policy import Policy
from mpsd.edge.http_server import Handler
from mpsd.roles.agent import AgentRole

if TYPE_CHECKING:
    from mpsd.roles.agent_metrics import Exposition


class MetricsApi:
    """limits_wrong: whether the limits files cannot be used."""

    def __init__(self, agent: AgentRole, policy: Callable[[], Policy], limits_wrong: Callable[[], bool]) -> None:
        self._agent = agent
        self._policy = policy
        self._limits_wrong = limits_wrong

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /metrics": self._show}

    async def _show(self, request: web.Request) -> web.Response:
        body, content_type = self._exposition.text(self._samples(), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    @cached_property
    def _exposition(self) -> "Exposition":
        from mpsd.roles.agent_metrics import Exposition  # only where somebody scrapes

        return Exposition()

    def _samples(self) -> list[Sample]:
        view = self._agent.view
        status = node_status(view, self._policy(), self._agent.watchdog.status()) if view else None
        return samples(status, limits_wrong=self._limits_wrong())
