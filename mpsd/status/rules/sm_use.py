"""How busy a grant's processes keep the SMs of a GPU, as far as NVML's samples can tell.

One rule: NVML counts what a client of MPS computes as its server's (docs/mps-observed.md, section 7), so it is told of
a grant only where it can be nobody else's: all of the server's clients on that GPU are the grant's, or none computes.
"""

from collections.abc import Iterable, Mapping

from mpsd.model.node_view import NodeView

Samples = Mapping[int, int | None]  # by pid, in percent; None: NVML gave a number that cannot be
_WHOLE = 100


def sm_percent(grant: str, gpu: str, view: NodeView, samples: Samples | None) -> int | None:
    """In percent of the time, of the grant of this id on the GPU of this UUID; who has no sample is idle.

    None: it cannot be told. NVML could not say, knows no process of the grant, or counts several grants as one.
    """
    if samples is None or view.clients is None:
        return None
    here = [client for client in view.clients if client.gpu == gpu]
    own = [client for client in here if client.grant == grant]
    if not own:
        return None
    servers = _servers(gpu, view)
    counted = {client.pid for client in own}
    if any(client.on_mps for client in own) and not servers.isdisjoint(samples):
        known = servers | {client.pid for client in here}
        if not known.issuperset(samples) or any(client.on_mps and client.grant != grant for client in here):
            return None
        counted |= servers
    return _sum(samples.get(pid, 0) for pid in counted)


def _servers(gpu: str, view: NodeView) -> frozenset[int]:
    return frozenset(pid for domain in view.domains if gpu in domain.record.gpus for pid in domain.record.servers)


def _sum(percents: Iterable[int | None]) -> int | None:
    """Of times in which a kernel ran, which overlap."""
    found = list(percents)
    known = [percent for percent in found if percent is not None]
    return min(_WHOLE, sum(known)) if len(known) == len(found) else None
