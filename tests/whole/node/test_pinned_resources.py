"""What devices are worth while an agent runs, whatever becomes of the policy."""

from dataclasses import replace

import pytest

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import PinnedResources
from mpsd.platform.logs import logger
from tests.model.worlds import POLICY, SPREAD
from tests.told_lines import told_lines

SMALL = replace(POLICY, resources=replace(POLICY.resources, memory_unit_mib=128))
RENAMED = replace(SPREAD, resources=replace(POLICY.resources, memory="example.com/vram"))


@pytest.mark.parametrize("later", [SMALL, RENAMED])
def test_resources_stay_those_of_the_start_and_the_rest_of_the_policy_counts(later: Policy) -> None:
    in_force = [POLICY]
    policy = PinnedResources(lambda: in_force[-1], logger())
    assert policy() is POLICY
    in_force.append(later)
    with told_lines() as said:
        pinned = policy()
        assert policy() is pinned
    assert [line["event"] for line in said] == ["resources kept"]
    assert pinned == replace(later, resources=POLICY.resources)
    in_force.append(SPREAD)
    assert policy() == SPREAD
