"""What the agent's answers are made from, whoever asks and wherever.

One rule: limits are looked up for each answer, so that changed ones hold from the next answer on.
"""

from dataclasses import dataclass

from mpsd.agent.agent import AgentRole
from mpsd.grants.local_grants import LocalGrants
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import facts_here
from mpsd.model.policy import Policy
from mpsd.mps.node import Node
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.settings import Settings


@dataclass(frozen=True, slots=True)
class AgentSources:
    """books: where grants are kept here; None beside a kubelet, where no program and no container gets a grant."""

    settings: Settings
    agent: AgentRole
    node: Node
    limits: LimitsFiles
    books: LocalGrants | None

    @property
    def policy(self) -> Policy:
        return self.limits.policy

    @property
    def facts(self) -> GpuFacts:
        """With this node's GPUs for cards."""
        return facts_here(self.node.gpus, self.limits.facts)
