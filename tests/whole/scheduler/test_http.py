"""Who is let in, and what is answered before anything is known: by one process for all of these
tests, over TLS.

Its API server is nowhere, so it never knows anything.
"""

import http.client
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpsd.platform.certificates import Pair
from mpsd.simulator.programs import wait_until
from tests.served import DEADLINE_S, free_port
from tests.whole.scheduler.client_certificates import authority, context, of_client, serving
from tests.whole.scheduler.process import Extender, extender
from tests.whole.scheduler.world import pod

REFUSED = (ssl.SSLError, ConnectionError, http.client.HTTPException)
UNKNOWN = "the cluster's mpsnodes and nodes and pods have not been listed yet"


@dataclass
class Installed:
    """folder: for what clients keep. was_closed_before: whether nobody could connect before
    there were certificates."""

    extender: Extender
    folder: Path
    shown: Pair
    clients: Pair
    was_closed_before: bool

    def show(self, signer: Pair) -> None:
        """Writes a new serving certificate, the way that kubelet swaps a mounted Secret's files."""
        self.shown = signer
        pair = serving(signer)
        write(self.folder / "certs" / "tls.key", pair.key)
        write(self.folder / "certs" / "tls.crt", pair.certificate)

    def let_in(self, clients: Pair) -> None:
        self.clients = clients
        write(self.folder / "ca.crt", clients.certificate)

    def connect_as(self, shown: Pair | None) -> Extender:
        """shown: the client's certificate; None for a client without one."""
        self.extender.context = context(self.shown, shown, self.folder)
        return self.extender

    def scheduler(self) -> Extender:
        return self.connect_as(of_client(self.clients))

    def lets_in(self, shown: Pair | None) -> bool:
        try:
            return self.connect_as(shown).ask("GET", "/inspect").status == 200
        except REFUSED:
            return False


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("scheduler")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {token:"
        f" t}}}}], clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{free_port()}'}}}}],"
        " contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    flags = {
        "cert_dir": str(folder / "certs"),
        "client_ca": str(folder / "ca.crt"),
        "address": "0.0.0.0",
    }
    with extender(folder, kubeconfig, **flags) as running:
        wait_until(
            lambda: running.log("certificates cannot be used"),
            DEADLINE_S,
            "it says that there are none",
            0.02,
        )
        closed = is_closed(running)
        made = Installed(running, folder, authority("serving"), authority("clients"), closed)
        made.show(made.shown)
        made.let_in(made.clients)
        wait_until(lambda: running.log("serving"), DEADLINE_S, "it serves", 0.02)
        yield made


def is_closed(one: Extender) -> bool:
    try:
        socket.create_connection(("127.0.0.1", one.port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_only_a_client_with_a_certificate_for_clients_is_let_in(installed: Installed) -> None:
    assert installed.was_closed_before, "nobody is let in before there are certificates"
    assert all(one["tls"] for one in installed.extender.log("serving"))
    assert installed.lets_in(of_client(installed.clients))
    assert not installed.lets_in(None)
    assert not installed.lets_in(of_client(authority("clients"))), (
        "signed by another of the same name"
    )
    assert not installed.lets_in(serving(installed.clients)), "good for servers only"
    installed.extender.context = None
    with pytest.raises(REFUSED):
        installed.extender.ask("POST", "/bind", b"{}")


def test_nothing_is_answered_before_the_cluster_has_been_heard_of(installed: Installed) -> None:
    asked = {"Pod": pod("a", 7), "NodeNames": ["node1"], "NodeNameToMetaVictims": {}}
    one = installed.scheduler()
    said = one.post("filter", asked).json
    assert (said["NodeNames"], said["Error"]) == (
        None,
        f"mpsd's scheduler does not know the free capacity: {UNKNOWN}",
    )
    for verb in ("prioritize", "preempt"):
        answer = one.post(verb, asked)
        assert (answer.status, UNKNOWN in answer.text) == (503, True)
    assert UNKNOWN in one.bind(
        {"metadata": {"name": "a", "namespace": "default", "uid": "u"}}, "node1"
    )
    assert one.ask("GET", "/inspect").json == {"nodes": [], "error": UNKNOWN}
    assert one.metric('mpsd_scheduler_requests_total{verb="filter",verdict="trouble"}') >= 1
    assert one.public("/healthz").status == 200
    ready = one.public("/readyz")
    assert (ready.status, ready.text) == (503, f"{UNKNOWN}\n")
    assert one.metric("mpsd_scheduler_ledger_usable_seconds") == 0
    assert {one.public(path).status for path in ("/bind", "/inspect", "/filter")} == {404}


def test_renewed_certificates_count_without_a_restart(installed: Installed) -> None:
    client, before = of_client(installed.clients), len(installed.extender.log("serving"))
    installed.show(authority("serving anew"))
    wait_until(lambda: installed.lets_in(client), DEADLINE_S, "the new one is shown", 0.05)
    assert len(installed.extender.log("serving")) == before, "nobody's connection was broken for it"
    installed.let_in(authority("clients anew"))
    wait_until(
        lambda: installed.lets_in(of_client(installed.clients)),
        DEADLINE_S,
        "the new ones are let in",
        0.05,
    )
    assert not installed.lets_in(client)
    assert installed.extender.stop() == 0
