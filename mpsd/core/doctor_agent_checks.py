"""The checks of `mpsd doctor` of the agent, and of what it sees and others do not.

One rule: what only the agent can know is unknown where it does not answer.
"""

from collections.abc import Iterator

from mpsd.core.doctor import Check, Severity, Wrong
from mpsd.core.doctor_facts import Elsewhere, NodeFacts, NotKnown, Unknown, known
from mpsd.core.node_status import NodeStatus

_SHOWN = 3  # processes that are named


def _agent_silent(facts: NodeFacts) -> Iterator[Wrong]:
    agent = known(facts.agent)
    if agent.told:
        return
    if known(facts.holder) is None:
        raise NotKnown(Elsewhere("mpsd does not run here"))
    what, _semicolon, remedy = agent.why_not.rpartition("; ")
    yield Wrong(what or agent.why_not, remedy if what else "see its log")


def _told(facts: NodeFacts) -> NodeStatus:
    """What the agent says. NotKnown where it says nothing."""
    agent = known(facts.agent)
    if agent.told is None:
        raise NotKnown(Unknown(agent.why_not))
    return agent.told


def _outside_books(facts: NodeFacts) -> Iterator[Wrong]:
    told = _told(facts)
    if told.clients is None:
        raise NotKnown(Unknown("NVML does not tell the agent who is on the GPUs"))
    outside = [client for client in told.clients if client.grant is None]
    for client in outside[:_SHOWN]:
        how = "on MPS without a grant" if client.on_mps else "beside MPS, without limits"
        label = next((gpu.label for gpu in told.gpus if gpu.uuid == client.gpu), client.gpu)
        what = f"pid {client.pid} uses {label} {how}: {client.command}"
        yield Wrong(what, "start it with `mpsd run`, or in a pod that asks for its share")
    if len(outside) > _SHOWN:
        yield Wrong(f"{len(outside) - _SHOWN} more processes are outside the books", "`mpsd status` lists them")


def _agent_blind(facts: NodeFacts) -> Iterator[Wrong]:
    for what in _told(facts).unknown:
        yield Wrong(f"the agent cannot see: {what}", "see its log; until then it grants nothing that this concerns")


_AGENT = "GET /v1/node on mpsd.sock"

SILENT_CHECK = Check("agent-silent", Severity.STOPS, "the agent answers", ("agent",), _AGENT, _agent_silent)
AGENT_CHECKS = (
    Check("outside-books", Severity.BREAKS, "every process on a GPU has a grant", ("agent",), _AGENT, _outside_books),
    Check("agent-blind", Severity.BREAKS, "the agent sees everything", ("agent",), _AGENT, _agent_blind),
)
