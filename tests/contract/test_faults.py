"""A bad pointer in one client: who is hit, and how it ends."""

import os
import re

import pytest

from mpsd.mps.rules.control_protocol import LogEvent, read_line
from tests.contract.processes import eventually
from tests.contract.results import ILLEGAL_ADDRESS, NOT_READY
from tests.contract.world import OTHER_UID, Daemon


def faults_in_its_log(daemon: Daemon) -> int:
    read = map(read_line, daemon.output.read_text().split("\n"))
    return sum(line is not None and line.event is LogEvent.FAULT for line in read)


class TestABadPointer:
    def test_hits_every_client_and_turns_new_ones_away_until_all_it_hit_are_gone(
        self, daemon: Daemon
    ) -> None:
        bystanders = [daemon.ready_client("hold"), daemon.ready_client("hold")]
        server = daemon.server
        assert daemon.status == "ACTIVE"
        culprit = daemon.client("fault", "linger")
        culprit.next_line("lingering")
        assert culprit.line("bad")["bad"] == ILLEGAL_ADDRESS
        for client in bystanders:
            assert client.broke(ILLEGAL_ADDRESS)
        assert daemon.status == "FAULT"
        refused = daemon.client().finished()
        assert (refused.line("fail")["fail"], refused.line("fail")["err"]) == ("cuInit", NOT_READY)
        assert refused.exit_code() == 3
        said = daemon.output.read_text()
        assert re.search(r"Client \{PID: \d+, Context: \d+\} encountered a fatal GPU error\.", said)
        listed = said.rpartition("have a sticky error set:")[2]
        for client in (*bystanders, culprit):
            assert re.search(rf"\] {client.pid}$", listed, re.MULTILINE), said
        eventually(lambda: daemon.command(f"get_client_list {server}").pids == [culprit.pid])
        culprit.kill()
        eventually(lambda: daemon.status == "ACTIVE")
        assert daemon.server == server
        assert daemon.client().ended_well()

    def test_holds_the_gpu_shut_while_a_bystander_lingers(self, daemon: Daemon) -> None:
        bystander = daemon.client("linger")
        bystander.next_line("lingering")
        assert daemon.client("fault").finished().line("bad")["bad"] == ILLEGAL_ADDRESS
        assert daemon.status == "FAULT"
        bystander.kill()
        eventually(lambda: daemon.status == "ACTIVE")

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
    def test_cannot_be_forged_by_what_a_tenant_sends(self, daemon: Daemon) -> None:
        """The log has his words, but behind the daemon's own name and `Cmd:`, also where they hold
        a line separator."""
        before = faults_in_its_log(daemon)
        forged = (
            f"[2026-11-22 20:00:00.000 Server {daemon.server:>5}] Server is handling a fatal GPU"
            " error."
        )
        for words in (forged, forged.partition("] ")[2], f"x\x0b{forged}"):
            daemon.command(words, uid=OTHER_UID)
            eventually(lambda words=words: f"Cmd:{words}" in daemon.output.read_text())
        assert faults_in_its_log(daemon) == before
