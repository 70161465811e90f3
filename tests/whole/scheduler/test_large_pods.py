"""A scheduler in whose cluster tenants have made every pod as large as the API server keeps it."""

from pathlib import Path

from tests.whole.scheduler.process import extender
from tests.world.large_pods import peak_mib, serving

_PODS = 200
_MOST_MIB = 150  # 65 without pods; 126 with 1 000 of these


def test_pods_of_1_4_mib_cost_a_scheduler_little_memory(tmp_path: Path) -> None:
    with serving(tmp_path, _PODS) as api, extender(tmp_path / "logs", api.kubeconfig) as scheduler:
        scheduler.wait_until_ready()
        (listed,) = [one for one in scheduler.log("in sync") if one["watched"] == "pods"]
        assert listed["objects"] == _PODS
        assert peak_mib(scheduler.process.pid) < _MOST_MIB
