"""The checks of `mpsd doctor` of the agent, and of what it sees and others do not.

One rule: what only the agent can know is unknown where it does not answer.
"""

from collections.abc import Iterator

from mpsd.model.node_status import NodeStatus
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, NodeFacts, NotKnown, Unknown, known
from mpsd.operations.doctor.rules.version_skew import Part, Skew, skew_of

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


def _skews(facts: NodeFacts) -> Iterator[tuple[str, Skew]]:
    """NotKnown where the agent is too old to say its version."""
    told, ours = _told(facts), known(facts.ours)
    if not told.version:
        raise NotKnown(Unknown("the agent is too old to say its version"))
    agent = (Part.AGENT, told.version)
    for version in sorted({domain.version for domain in told.domains if domain.version}):
        if row := skew_of((Part.CONTROL, version), agent):
            yield f"control is of version {version} and the agent of {told.version}", row
    if row := skew_of((Part.COMMAND, ours), agent):
        yield f"{Part.COMMAND} is of version {ours} and the agent of {told.version}", row


def _skewed(facts: NodeFacts) -> Iterator[Wrong]:
    for what, row in _skews(facts):
        if not row.normal:
            yield Wrong(f"{what}: {row.why}", row.remedy)


def _behind(facts: NodeFacts) -> Iterator[Wrong]:
    for what, row in _skews(facts):
        if row.normal:
            yield Wrong(f"{what}: {row.why}", row.remedy)


_AGENT = "GET /v1/node on mpsd.sock"
_VERSIONS = ("agent", "ours")
_VERSIONS_IN = f"{_AGENT}: version, domains[].version"

SILENT_CHECK = Check("agent-silent", Severity.STOPS, "the agent answers", ("agent",), _AGENT, _agent_silent)
AGENT_CHECKS = (
    Check("outside-books", Severity.BREAKS, "every process on a GPU has a grant", ("agent",), _AGENT, _outside_books),
    Check("version-skew", Severity.BREAKS, "the agent knows what control writes", _VERSIONS, _VERSIONS_IN, _skewed),
    Check("agent-blind", Severity.BREAKS, "the agent sees everything", ("agent",), _AGENT, _agent_blind),
)
BEHIND_CHECK = Check("version-behind", Severity.NOTE, "all parts are of one version", _VERSIONS, _VERSIONS_IN, _behind)
