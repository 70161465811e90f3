"""A node of document D's size, three V100 in one domain, and containers that ask of it in the
dialects."""

from collections.abc import Sequence
from dataclasses import replace

from mpsd.agent.rules.decide import Admit, EndGrant, Refuse, decide
from mpsd.containers.dialects.parsing import read_dialect
from mpsd.containers.dialects.request import DialectRequest, cards_request
from mpsd.model.domain import State
from mpsd.model.grants import Gpu, Grant
from mpsd.model.identity import HostContainer
from mpsd.model.node_view import (
    Client,
    DomainRecord,
    DomainView,
    HeldGrant,
    NodeView,
    WaitingRequest,
)
from mpsd.model.policy import Policy
from tests.containers.dialect_machine import V100_MIB, VOLTA
from tests.model.worlds import NOW, NOW_S, POLICY, identity, record

SERVER_MIB = VOLTA.server_mib  # what MPS takes of a card, which the report's does not


def cards(memory_mib: int = V100_MIB + SERVER_MIB, count: int = 3) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(f"GPU-{n:08x}-uuid", n, "Tesla V100", memory_mib, 80, VOLTA) for n in range(count)
    )


def one_domain(gpus: Sequence[Gpu], state: State = State.READY, reason: str = "") -> DomainRecord:
    return replace(
        record(0, state, reason=reason), domain="all", gpus=tuple(gpu.uuid for gpu in gpus)
    )


def apart(gpus: Sequence[Gpu]) -> tuple[DomainRecord, ...]:
    return tuple(replace(record(0), domain=gpu.label, gpus=(gpu.uuid,)) for gpu in gpus)


def egpu(*asked: tuple[int, int, int]) -> dict[str, str]:
    """The variable of document D, for cards of (PGPU, MEM, WEIGHT)."""
    written = (f"PGPU={gpu},MEM={mib},WEIGHT={weight}" for gpu, mib, weight in asked)
    return {
        "EGPU": ":".join(["POLICY=0,ONLINE=0,TYPE=DOCKER", *written]),
        "NVIDIA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu, _, _ in asked),
    }


class Node:
    """Containers that come and go, decided as `mpsd up` decides them."""

    def __init__(
        self, gpus: tuple[Gpu, ...], records: tuple[DomainRecord, ...] = (), policy: Policy = POLICY
    ) -> None:
        self.gpus, self.policy = gpus, policy
        self.records = records or (one_domain(gpus),)
        self.grants: tuple[Grant, ...] = ()
        self.clients: tuple[Client, ...] = ()
        self._asked = 0

    def view(self, *waiting: WaitingRequest, ended: frozenset[str] = frozenset()) -> NodeView:
        held = tuple(HeldGrant(grant, grant.id not in ended) for grant in self.grants)
        domains = tuple(DomainView(one, frozenset()) for one in self.records)
        seen = domains, held, self.clients, waiting
        return NodeView(NOW, NOW_S, "580.159.04", self.gpus, *seen, ())

    def ask(self, environment: dict[str, str]) -> Grant | Refuse:
        """What becomes of a container with this environment, in which nothing is wrong."""
        reading = read_dialect(environment, self.gpus, self.policy.compute)
        assert isinstance(reading, DialectRequest), reading
        self._asked += 1
        name = f"c{self._asked}"
        holder = HostContainer("/run/runc", name, name, identity(self._asked), is_made=True)
        waits = WaitingRequest(name, cards_request(reading), holder, True, name, None)
        (answer,) = (
            one for one in decide(self.view(waits), self.policy) if isinstance(one, Admit | Refuse)
        )
        if isinstance(answer, Refuse):
            return answer
        self.grants += (answer.grant,)
        return answer.grant

    def end(self, grant: Grant) -> None:
        """The container is gone."""
        actions = decide(self.view(ended=frozenset({grant.id})), self.policy)
        over = [one.grant for one in actions if isinstance(one, EndGrant)]
        self.grants = tuple(one for one in self.grants if one not in over)
