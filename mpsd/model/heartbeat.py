"""How often a node tells of itself though nothing has changed.

One rule: who tells and who listens count with the same number.
"""

HEARTBEAT_S = 300.0  # between two writes of an MPSNode, at most
STALE_S = 2 * HEARTBEAT_S  # after this long what a node has told is not believed
