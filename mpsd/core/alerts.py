"""Every alert of mpsd.

One rule: each has a heading of its name in docs/operations.md that says what to do; a test holds the two together.

Few, and none that mends itself: one fault, one restart, one violation are on the board, not here.
"""

from mpsd.core.alerts_domains import DOMAINS
from mpsd.core.alerts_nodes import NODES, PODS
from mpsd.core.alerts_servers import SERVERS

GROUPS = (("mpsd-domains", DOMAINS), ("mpsd-nodes", NODES), ("mpsd-pods", PODS), ("mpsd-servers", SERVERS))
ALERTS = tuple(one for _name, alerts in GROUPS for one in alerts)
