"""Where the agent's metrics can be scraped: `GET /metrics` on its Unix socket, and on a TCP port where that is asked.

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
from mpsd.edge.https_server import Listening, PortTaken, TcpServer
from mpsd.edge.logs import logger
from mpsd.edge.metrics_settings import ListenAddress
from mpsd.roles.agent import AgentRole
from mpsd.roles.cluster_part import CannotServe

if TYPE_CHECKING:
    from mpsd.roles.agent_metrics import Exposition

_LONGEST_BODY = 4096


class MetricsApi:
    """limits_wrong: whether the limits files cannot be used. listen: None for the Unix socket alone."""

    def __init__(
        self,
        agent: AgentRole,
        policy: Callable[[], Policy],
        limits_wrong: Callable[[], bool],
        listen: ListenAddress | None,
    ) -> None:
        self._agent = agent
        self._policy = policy
        self._limits_wrong = limits_wrong
        self._listen = listen
        self._server = (
            TcpServer(self.routes, Listening(listen.address, listen.port, None, _LONGEST_BODY)) if listen else None
        )

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /metrics": self._show}

    async def start(self) -> None:
        """CannotServe where the port is taken."""
        if self._server is None or self._listen is None:
            return
        try:
            await self._server.start()
        except PortTaken as error:
            raise CannotServe(f"metrics: {error}") from None
        where = {"address": self._listen.address, "port": self._server.port}
        if self._listen.is_loopback:
            logger().info("metrics served", **where)
        else:
            logger().warning("metrics served", **where, authentication="none yet: whoever gets there may read them")

    async def stop(self) -> None:
        if self._server:
            await self._server.stop()

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
