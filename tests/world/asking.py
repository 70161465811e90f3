"""What mpsd's client of Kubernetes answers, asked by a test without a loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from mpsd.platform.kube import Kube
from mpsd.platform.kube_access import open_kube

T = TypeVar("T")


def answers(kubeconfig: Path, questions: Callable[[Kube], Awaitable[T]]) -> T:
    async def main() -> T:
        kube = open_kube(kubeconfig)
        try:
            return await questions(kube)
        finally:
            kube.close()

    return asyncio.run(main())
