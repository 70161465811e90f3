"""An error in a task of the scheduler ends it."""

from pathlib import Path

import pytest

from tests.simulated_api import SimulatedApi
from tests.whole.machine.machine import eventually
from tests.whole.scheduler.process import extender
from tests.whole.scheduler.world import DEADLINE_S
from tests.world.dying import Raised

TASKS = (
    Raised("mpsd.scheduler.ledger:ClusterLedger.run"),
    Raised("mpsd.scheduler.ledger:ClusterLedger._settle_once_listed"),
    Raised("mpsd.platform.kube_mirror:Mirror.run"),
    Raised("mpsd.scheduler.api:ExtenderListener.keep"),
    Raised("mpsd.cli.scheduler:SchedulerRole._watch_ledger"),
    Raised("mpsd.platform.limits_files:watch_limits"),
)


@pytest.mark.parametrize("raised", TASKS, ids=str)
def test_an_error_in_a_task_of_the_scheduler_ends_it(
    api: SimulatedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Raised
) -> None:
    file = tmp_path / "raise"
    for name, value in raised.environment(file).items():
        monkeypatch.setenv(name, value)
    is_short = raised.function.endswith("_settle_once_listed")
    if is_short:
        file.touch()
    with extender(tmp_path, api.kubeconfig(tmp_path)) as running:
        if not is_short:
            eventually(lambda: running.public("/healthz").status == 200, "it answers")
            file.touch()
        assert running.process.wait(DEADLINE_S) == 1
        raised.is_told("mpsd scheduler", running.log_text)
