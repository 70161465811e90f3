"""The checks of `kubectl mps doctor`, in the order in which they are to be read: causes before what follows from them.

One rule: a row says what is wrong and the one thing to do, and never more than was seen. The rows themselves are beside
this, by subject.
"""

from mpsd.operations.doctor.rules.cluster_doctor_install import DEFINITION_CHECK, INSTALL_CHECKS, RESTART_CHECK
from mpsd.operations.doctor.rules.cluster_doctor_nodes import LATER_NODE_CHECKS, NODE_CHECKS
from mpsd.operations.doctor.rules.cluster_doctor_pods import POD_CHECKS
from mpsd.operations.doctor.rules.cluster_doctor_webhook import WEBHOOK_CHECKS
from mpsd.operations.doctor.rules.cluster_facts import ClusterFacts
from mpsd.operations.doctor.rules.doctor import Check

CLUSTER_CHECKS: tuple[Check[ClusterFacts], ...] = (
    *INSTALL_CHECKS,
    *NODE_CHECKS,
    RESTART_CHECK,
    *WEBHOOK_CHECKS,
    *POD_CHECKS,
    DEFINITION_CHECK,
    *LATER_NODE_CHECKS,
)
