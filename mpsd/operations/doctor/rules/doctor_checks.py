"""The checks of `mpsd doctor`, in the order in which they are to be read: causes before what follows from them.

One rule: a row says what is wrong and the one thing to do, and never more than was seen. The rows themselves are beside
this, by subject.
"""

from mpsd.operations.doctor.rules.doctor import Check
from mpsd.operations.doctor.rules.doctor_agent_checks import AGENT_CHECKS, BEHIND_CHECK, SILENT_CHECK
from mpsd.operations.doctor.rules.doctor_domain_checks import CANARY_CHECK, DOMAIN_CHECKS, DOUBT_CHECK, DRAIN_CHECK
from mpsd.operations.doctor.rules.doctor_driver_checks import DRIVER_CHECKS, UNTESTED_CHECK
from mpsd.operations.doctor.rules.doctor_facts import NodeFacts
from mpsd.operations.doctor.rules.doctor_file_checks import FILE_CHECKS, LIMITS_CHECK, TMPFS_CHECK
from mpsd.operations.doctor.rules.doctor_host_checks import HOST_CHECKS
from mpsd.operations.doctor.rules.doctor_mode_checks import LOST_CHECK, WAY_CHECKS

CHECKS: tuple[Check[NodeFacts], ...] = (
    LIMITS_CHECK,
    *DRIVER_CHECKS,
    *FILE_CHECKS,
    *WAY_CHECKS,
    CANARY_CHECK,
    *DOMAIN_CHECKS,
    SILENT_CHECK,
    LOST_CHECK,
    *AGENT_CHECKS,
    DOUBT_CHECK,
    UNTESTED_CHECK,
    BEHIND_CHECK,
    DRAIN_CHECK,
    TMPFS_CHECK,
    *HOST_CHECKS,
)
