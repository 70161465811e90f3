"""What the agent's answers are made from, and questions that only root and mpsd's user may ask."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from aiohttp import web

from mpsd.agent.agent import AgentRole
from mpsd.grants.ledger import LocalGrants
from mpsd.grants.rules.messages import Refusal
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import facts_here
from mpsd.model.identity import ProcessIdentity
from mpsd.model.policy import Policy
from mpsd.mps.node_gpus import Node
from mpsd.platform.bodies import read_body
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.listener import asking_process, json_answer, peer
from mpsd.platform.peers import Peer
from mpsd.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class AgentSources:
    """What an agent's APIs read. ledger: None beside a kubelet. unheard: what of the cluster is not
    heard of, and why. claims: the driver of resource claims, and why they cannot be served now.
    upgrade_state: of the node's driver."""

    settings: Settings
    agent: AgentRole
    node: Node
    limits: LimitsFiles
    ledger: LocalGrants | None
    unheard: Callable[[], str] = lambda: ""
    claims: Callable[[], tuple[str, str]] = lambda: ("", "")
    upgrade_state: Callable[[], str] = lambda: ""
    stopping: Callable[[], bool] = lambda: False  # whether this process ends, with its daemons

    @property
    def policy(self) -> Policy:
        return self.limits.policy

    @property
    def facts(self) -> GpuFacts:
        """With this node's GPUs for cards."""
        return facts_here(self.node.gpus, self.limits.facts)


PODS_ONLY = "kubelet assigns this node's GPUs to pods; create a pod"
Question = TypeVar("Question")


class Refused(Exception):
    """The request is refused. status: of HTTP; for_ever: repeating it will not help."""

    def __init__(self, status: int, *reasons: str, for_ever: bool = False) -> None:
        super().__init__("; ".join(reasons))
        self.answer = json_answer(Refusal(reasons, for_ever), status=status)


def known_asker(request: web.Request, why_not: str, *, for_ever: bool = False) -> Peer:
    """The caller, by the kernel's word. Refused, unless it is root or mpsd's own user."""
    found = peer(request)
    if found is None or not is_operator(found):
        raise Refused(403, why_not, for_ever=for_ever)
    return found


def asking(request: web.Request) -> ProcessIdentity:
    """The process that connected, by the kernel's word. Refused where it does not say which, or
    that has ended."""
    if found := asking_process(request):
        return found
    why = "the kernel does not report which process asks, or that has ended"
    remedy = "ask over a connection of its own, in mpsd's pid and network namespaces"
    raise Refused(400, f"{why}; {remedy}", for_ever=True)


def is_operator(asker: Peer) -> bool:
    """Whether it is root or mpsd's own user."""
    return asker.uid in {0, os.geteuid()}


def tenant_of(request: web.Request) -> int | None:
    """The uid of who connected; None for root and mpsd's own user. Refused where it has gone."""
    found = peer(request)
    if found is None:
        raise Refused(400, "the connection is closed; ask again")
    if is_operator(found):
        return None
    return found.uid


async def read(request: web.Request, kind: type[Question]) -> Question:
    """Refused where the body does not have this form; BodyRefused where it does not arrive."""
    body = await read_body(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, f"the request is not understood: {error}", for_ever=True) from None
