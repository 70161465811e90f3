"""The sentences about a domain's daemon and driver, as people read them: `wording.txt` has them all."""

from collections.abc import Iterator

from mpsd.model.policy import CanaryRule
from mpsd.mps.rules import canary, faults
from mpsd.mps.rules.control_protocol import NotUnderstood
from tests.model.worlds import NOW
from tests.mps.test_canary import DEAR, DISOBEYED, GPU, HERE, NOT_SHUT, ROUNDED, of
from tests.mps.test_faults import GRACES, fault


def sentences() -> Iterator[tuple[str, str]]:
    yield from ((f"canary {name}", finding.problem) for name, finding in DISOBEYED.items())
    yield from ((f"canary denial {name}", canary.denial_problem(GPU, seen)) for name, seen in NOT_SHUT.items())
    yield from (("canary warning", finding.warning) for finding in (DEAR, ROUNDED))
    yield "canary obstacle", canary.obstacle(of("bad"), HERE, CanaryRule.REQUIRE)
    yield "fault stuck", faults.why_stuck([fault()], NOW + GRACES.fault_grace_s + GRACES.wedged_limit_s, GRACES)
    yield "answer not understood", str(NotUnderstood("get_server_list", "Hello"))


def wording() -> str:
    return "".join(f"{code}\n  {sentence}\n" for code, sentence in sentences())
