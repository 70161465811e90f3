"""Records that were damaged while mpsd was away: nothing is granted twice, nobody is ended, and the
file is named."""

from pathlib import Path

from tests.whole.machine.machine import MPSD, Machine, Program, eventually


def record_of(machine: Machine, program: Program) -> Path:
    (path,) = machine.run_directory.glob(f"grants/{machine.grant_of(program).id}.json")
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def test_a_truncated_grant_is_rebuilt_from_its_program_and_its_memory_is_not_granted_again(
    machine: Machine,
) -> None:
    service = machine.up()
    client = machine.client(20)
    before, limit_mib = machine.grant_of(client), machine.limit_mib()
    path = record_of(machine, client)
    sound = path.read_bytes()
    service.kill()
    truncate(path)

    again = machine.up()

    refused = machine.run("--gpu-mem 21", "sim-cuda")
    assert refused.exit_code() == 1, refused
    after = machine.grant_of(client)
    assert (after.id, after.memory_mib, after.thread_percent) == (
        before.id,
        20 * 1024,
        before.thread_percent,
    )
    assert path.read_bytes() != sound[:20]
    assert again.logged("grant rebuilt", grant=before.id)
    assert machine.limit_mib() == limit_mib
    assert client.running


def test_a_grant_that_nobody_can_prove_closes_its_gpu_until_its_file_is_removed(
    machine: Machine,
) -> None:
    service = machine.up()
    client = machine.run("--gpu-mem 20", "env", "-u", "MPSD_GRANT", "sim-cuda", "hold")
    client.heard("ready")
    path, limit_mib = record_of(machine, client), machine.limit_mib()
    service.kill()
    truncate(path)
    damaged = path.read_bytes()

    machine.up()

    refused = machine.run("--gpu-mem 1", "sim-cuda")
    assert refused.exit_code() == 1, refused
    remedy = f"once no program uses it, run `rm {path}`"
    assert "gpu0 takes no new grant" in refused.errors
    assert remedy in " ".join(refused.errors.split())
    assert any(remedy in what for what in machine.node().unknown)
    for verb in ("status", "doctor"):
        said = machine.start([MPSD, verb], {"COLUMNS": "1000"})
        said.exit_code()
        assert str(path) in said.output, said
    machine.until_watched()
    assert client.running
    assert machine.node().violations.counts == ()  # type: ignore[union-attr]
    assert machine.limit_mib() == limit_mib
    assert path.read_bytes() == damaged

    client.kill()
    path.unlink()
    eventually(lambda: not machine.node().unknown, "the file is missed")
    assert machine.run("--gpu-mem 21", "true").exit_code() == 0
