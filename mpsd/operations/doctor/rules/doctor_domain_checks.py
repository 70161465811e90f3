"""The checks of `mpsd doctor` of the domains: their records, their daemons, and whether they take programs.

One rule: a domain is what its record says, as long as the daemon that the record names lives.
"""

from collections.abc import Iterator

from mpsd.model.domain_states import State, after_is, remedy
from mpsd.model.node_view import RECORD_VERSION
from mpsd.operations.doctor.rules.doctor import Check, Severity, Wrong
from mpsd.operations.doctor.rules.doctor_facts import DomainSeen, Elsewhere, NodeFacts, NotKnown, Unknown, known

RECORDS = "record.json of each domain in the run directory"


def domains_of(facts: NodeFacts) -> tuple[DomainSeen, ...]:
    """NotKnown where there is none to say anything of."""
    domains = known(facts.domains)
    if not domains:
        raise NotKnown(Elsewhere("mpsd has no domain here"))
    return domains


def is_in(one: DomainSeen, state: State) -> bool:
    return one.record.state is state and one.daemon_lives


def _canary_failed(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if one.record.canary and one.record.canary.problem:
            canary = one.record.canary
            what = f"{one.record.domain}: the canary failed under driver {canary.driver}: {canary.problem}"
            yield Wrong(what, "install a driver that holds limits (docs/operations/canary.md)")


def _canary_doubt(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if one.record.canary and one.record.canary.warning:
            yield Wrong(f"{one.record.domain}: its canary found: {one.record.canary.warning}", "correct gpus.yaml")


def _record_strange(facts: NodeFacts) -> Iterator[Wrong]:
    remedy = "restart `mpsd control` with the version of this program (programs go on), or use the version it has"
    for why in known(facts.unreadable):
        yield Wrong(f"a domain's record cannot be read: {why}", remedy)
    for one in known(facts.domains):
        if one.record.version != RECORD_VERSION:
            what = f"{one.record.domain}: its record is of version {one.record.version}, and this mpsd reads"
            yield Wrong(f"{what} {RECORD_VERSION}", remedy)


def _not_running(facts: NodeFacts) -> Iterator[Wrong]:
    if known(facts.holder) is not None:
        return
    domains = () if isinstance(facts.domains, Unknown | Elsewhere) else facts.domains
    living = [one.record.domain for one in domains if one.daemon_lives]
    if living:
        what = f"neither `mpsd up` nor `mpsd control` runs: nobody looks after the daemons of {', '.join(living)}"
        yield Wrong(what, "start it again: it takes them over, and no program notices")
    else:
        yield Wrong("mpsd does not run here, and no daemon of its own", "start it with `mpsd up`")


def _domain_stopped(facts: NodeFacts) -> Iterator[Wrong]:
    """Of each domain that takes no programs, why not."""
    for one in domains_of(facts):
        record, state = one.record, one.record.state
        if record.daemon and not one.daemon_lives and state is not State.DOWN:
            what = f"{record.domain}: its control daemon ({record.daemon}) is gone"
            yield Wrong(what, f"see its log ({record.domain}/log/control.log in the run directory) and mpsd's")
        elif what_to_do := remedy(state, record.reason):
            why = f": {record.reason}" if record.reason else ""
            yield Wrong(f"{record.domain} is {after_is(state)}{why}", what_to_do)


def _domain_drains(facts: NodeFacts) -> Iterator[Wrong]:
    for one in domains_of(facts):
        if is_in(one, State.DRAINING) or is_in(one, State.DRAINED):
            why = f": {one.record.reason}" if one.record.reason else ""
            what = f"{one.record.domain} is {one.record.state} and takes no new programs{why}"
            yield Wrong(what, "put it back when the work is done (`kubectl mps undrain NODE`)")


_STOPS = Severity.STOPS

CANARY_CHECK = Check("canary-failed", _STOPS, "the driver holds limits", ("domains",), RECORDS, _canary_failed)
DOMAIN_CHECKS = (
    Check("record-strange", _STOPS, "records are of this version", ("unreadable", "domains"), RECORDS, _record_strange),
    Check("not-running", _STOPS, "mpsd runs", ("holder",), "/proc/locks: the run directory", _not_running),
    Check("domain-stopped", _STOPS, "every domain takes programs", ("domains",), RECORDS, _domain_stopped),
)
DOUBT_CHECK = Check(
    "canary-doubt", Severity.NOTE, "the canary found what gpus.yaml says", ("domains",), RECORDS, _canary_doubt
)
DRAIN_CHECK = Check("draining", Severity.NOTE, "no domain is drained", ("domains",), RECORDS, _domain_drains)
