"""What the agent answers `mpsd set`: another size of memory, percentage or weight for a grant.

One rule: it is decided and written down while no turn of the agent is under way, so that nobody is admitted to what was
given here. More memory is answered once the domain's servers let a client of that size in; until then it may go back.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from mpsd.agent.agent_sources import AgentSources
from mpsd.agent.privileged_questions import No, known_asker, read
from mpsd.containers.rules.change_told import is_misuse, told
from mpsd.containers.rules.grant_change import Change, changed
from mpsd.grants.kept_grants import KeptGrant
from mpsd.grants.local_grants import LocalGrants
from mpsd.grants.rules.set_messages import GrantChangeAsks, GrantChanged
from mpsd.model.grants import Part
from mpsd.platform.listener import Handler, json_answer
from mpsd.platform.logs import logger

_TURN_S = 10.0  # for the agent's turn to end, in which a daemon may not answer
_RAISED_S = 10.0  # for the domain's servers to let a larger client in


class GrantSetApi:
    """Beside a kubelet it refuses: pods' grants nobody else changes."""

    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources
        self._agent = sources.agent
        self._books = sources.books
        self._log = logger(role="grants")

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"POST /v1/grants/{id}": self._set}

    async def _set(self, request: web.Request) -> web.Response:
        """200 with what was and what is; 400 for what is no question; 403, 404; 409 where it cannot be now."""
        grant_id = request.match_info["id"]
        try:
            known_asker(request, "grants are changed by root and by mpsd's own user; ask as root", for_ever=False)
            asks = await read(request, GrantChangeAsks)
            return json_answer(await self._change(grant_id, asks))
        except No as no:
            self._log.info("change refused", grant=grant_id, reason=str(no))
            return no.answer

    async def _change(self, grant_id: str, asks: GrantChangeAsks) -> GrantChanged:
        if self._books is None:
            raise No(
                409,
                "kubelet gives this node's GPUs to pods; change what the pod asks for, and make it anew",
                for_ever=False,
            )
        try:
            async with asyncio.timeout(_TURN_S), self._agent.between_turns():
                before, after, answer = self._decided(grant_id, asks)
                if not asks.dry_run:
                    self._books.change(after)
        except TimeoutError:
            raise No(
                409, f"the agent has been busy for {_TURN_S:g} s, and nothing is changed; try again", for_ever=False
            ) from None
        if not asks.dry_run and after.memory_mib > before.memory_mib:
            await self._until_raised(before, after, self._books)
        if not asks.dry_run:
            self._log.info(
                "grant changed",
                grant=grant_id,
                holder=str(after.holder),
                memory_mib=[part.memory_mib for part in after.parts],
                reserved_percent=[part.reserved_percent for part in after.parts],
                thread_percent=after.thread_percent,
                forced=asks.forced,
            )
        return answer

    def _decided(self, grant_id: str, asks: GrantChangeAsks) -> tuple[KeptGrant, KeptGrant, GrantChanged]:
        view, policy = self._agent.look(), self._sources.policy
        before = next((held.grant for held in view.grants if held.grant.id == grant_id), None)
        if not isinstance(before, KeptGrant):
            raise No(404, f"grant {grant_id} is not there any more", for_ever=False)
        change = Change(asks.memory_mib, asks.percent, asks.weight, asks.gpu, asks.forced)
        after = changed(before, change, view, policy)
        if isinstance(after, tuple):
            misuse = is_misuse(after)
            raise No(400 if misuse else 409, *map(str, after), for_ever=misuse)
        return before, after, told(before, after, view, policy, dry_run=asks.dry_run)

    async def _until_raised(self, before: KeptGrant, after: KeptGrant, books: LocalGrants) -> None:
        """No where the servers did not come to let it in; what was to be more is as it was then."""
        why = await self._agent.until_allowed(after.domain, after.memory_mib, _RAISED_S)
        if not why:
            return
        async with self._agent.between_turns():
            now = next((held.grant for held in books.held() if held.grant.id == after.id), None)
            if isinstance(now, KeptGrant) and now.parts == after.parts:  # else it was changed again, or has ended
                books.change(replace(now, parts=tuple(map(_less, before.parts, after.parts))))
        raise No(409, f"{why}; it has no more memory than before", for_ever=False)


def _less(before: Part, after: Part) -> Part:
    return replace(after, memory_mib=min(before.memory_mib, after.memory_mib))
