"""What an agent says before it goes: that nothing is free here, so that no pod is on its way when its plugin is gone.

One rule: kubelet refuses for good what comes to it without a plugin (UnexpectedAdmissionError; a Job burns a retry),
and counts devices only every ten seconds. So the scheduler hears it from us, and kubelet says the same a little later;
when the next agent has registered, kubelet counts again and the node is open.
"""

import asyncio
from collections.abc import Callable

from mpsd.model.policy import Policy
from mpsd.platform.kube import Kube, KubeError, PatchKind
from mpsd.platform.logs import Logger
from mpsd.status.report_node import NODES

_SETTLE_S = 1.0  # from a pod's binding to its Allocate: two watches and kubelet's admission
_DEADLINE_S = 1.0  # an agent goes, whether the API server answers or not


class Leaving:
    """node: its name in the cluster."""

    def __init__(self, kube: Kube, node: str, policy: Callable[[], Policy], log: Logger) -> None:
        self._kube = kube
        self._node = node
        self._policy = policy
        self._log = log

    async def announce(self) -> None:
        """While the plugin still serves. Returns when what was on its way has come; at once where nobody hears it."""
        if await self._say():
            self._log.info("nothing offered", reason="the agent goes")
            await asyncio.sleep(_SETTLE_S)

    async def repeat(self) -> None:
        """When the plugin has gone: kubelet may have counted in between."""
        await self._say()

    async def _say(self) -> bool:
        resources = self._policy().resources
        patch = {"status": {"allocatable": {resources.memory: "0", resources.percent: "0"}}}
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self._kube.patch(NODES, self._node, patch, PatchKind.STRATEGIC, subresource="status")
        except (KubeError, TimeoutError) as error:
            self._log.warning("leaving unheard", reason=str(error) or "the Kubernetes API does not answer")
            return False
        return True
