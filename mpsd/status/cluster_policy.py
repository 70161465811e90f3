"""The policy that a cluster's pods are under, for those who ask from outside.

One rule: where the cluster's own cannot be had, that which was shipped is taken, and said to have been.

Right of whoever asks, though none is needed: get of configmap mpsd-limits in mpsd-system.
"""

from dataclasses import dataclass

from mpsd.model.installed import LIMITS, NAMESPACE
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput
from mpsd.platform.kube import Kube, KubeError, Resource
from mpsd.platform.limits_files import GPU_FACTS_FILE, POLICY_FILE, load_limits
from mpsd.platform.rules.limits_reading import read_gpu_facts, read_policy
from mpsd.platform.yaml_files import parse_yaml

_CONFIG_MAPS = Resource("v1", "configmaps")
OF_CLUSTER, SHIPPED = f"ConfigMap {NAMESPACE}/{LIMITS}", "shipped with this mpsd"


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """clients: that a GPU serves at least. source: OF_CLUSTER or SHIPPED. why: it is not the cluster's; empty where it
    is.
    """

    policy: Policy
    clients: int
    source: str
    why: str


async def policy_in_force(kube: Kube) -> PolicyInForce:
    try:
        thing = await kube.get(_CONFIG_MAPS, LIMITS, NAMESPACE)
        policy = read_policy(_value(thing, POLICY_FILE), f"{OF_CLUSTER}, {POLICY_FILE}")
        facts = read_gpu_facts(_value(thing, GPU_FACTS_FILE), f"{OF_CLUSTER}, {GPU_FACTS_FILE}")
        return PolicyInForce(policy, facts.fewest_clients, OF_CLUSTER, "")
    except (KubeError, InvalidInput) as error:
        limits = load_limits(None)
        return PolicyInForce(limits.policy, limits.facts.fewest_clients, SHIPPED, str(error))


def _value(thing: object, file: str) -> object:
    """What the file in a ConfigMap holds; None for nothing."""
    data = thing.get("data") if isinstance(thing, dict) else None
    text = data.get(file) if isinstance(data, dict) else None
    documents = parse_yaml(str(text or "").encode(), f"{OF_CLUSTER}, {file}")
    return documents[0].value if documents else None
