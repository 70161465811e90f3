"""Small nodes whose grants are held by pods."""

from dataclasses import fields as dataclass_fields
from dataclasses import replace

from mpsd.kubelet.dra.rules.claims import ClaimGrant
from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client, DomainView, HeldGrant, NodeView
from tests.model.worlds import NOW, NOW_S, UUIDS, grant, record, view


def pod(name: str) -> PodName:
    return PodName("default", name, f"uid-of-{name}")


def held(name: str, gib: int = 7, gpu: int = 0) -> HeldGrant:
    """A pod's grant; its id is the pod's uid."""
    who = pod(name)
    return HeldGrant(
        replace(grant(who.uid, gib, gpu), holder=who, command=str(who)), holder_alive=True
    )


def client(name: str, pid: int, used_mib: int | None = 500, gpu: int = 0) -> Client:
    """A process of this pod."""
    return Client(
        ProcessIdentity(pid, 1, "boot"),
        UUIDS[gpu],
        used_mib,
        on_mps=True,
        command="train",
        grant=pod(name).uid,
    )


def node(
    *,
    grants: tuple[HeldGrant, ...] = (),
    clients: tuple[Client, ...] = (),
    now: float = NOW,
    unknown: tuple[str, ...] = (),
    grants_known: bool = True,
    **records: object,
) -> NodeView:
    """records: the fields of the record of gpu0 that are not as usual, such as state=State.DOWN."""
    usual = view()
    changed = replace(record(0), **records)  # type: ignore[arg-type]
    domains = (DomainView(changed, frozenset()), *usual.domains[1:])
    return replace(
        usual,
        now=now,
        now_s=now - NOW + NOW_S,
        domains=domains,
        grants=grants,
        clients=clients,
        unknown=unknown,
        grants_known=grants_known,
    )


def held_claim(name: str, *pods: PodName, gib: int = 7, gpu: int = 0) -> HeldGrant:
    """The grant of a claim that these pods share."""
    plain = grant(f"uid-of-{name}", gib, gpu)
    fields = {each.name: getattr(plain, each.name) for each in dataclass_fields(plain)}
    fields |= {"holder": pods[0], "command": f"claim default/{name}"}
    return HeldGrant(ClaimGrant(**fields, sharing=pods, claim=f"default/{name}"), holder_alive=True)


def client_of_claim(name: str, member: PodName, pid: int, used_mib: int = 500) -> Client:
    """A process of one of its pods."""
    return replace(client(name, pid, used_mib), pod=member.uid)
