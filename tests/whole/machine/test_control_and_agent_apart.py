"""`mpsd control` and `mpsd agent` as two processes: either may die without the other's clients noticing."""

from tests.whole.machine.machine import Machine, eventually


def test_a_program_that_waits_is_told_that_the_agent_went_away(apart: Machine) -> None:
    agent = apart.part("agent")
    apart.client(20)
    waits = apart.run("--gpu-mem 20 --wait", "true")
    eventually(lambda: apart.queue == [waits.pid], "it waits")
    agent.kill()
    assert waits.exit_code() == 1
    assert "mpsd closed the connection" in waits.errors
    apart.service("agent")
    apart.until_ready()
