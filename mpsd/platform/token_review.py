"""Asks the API server whose token it is and whether its owner may read: TokenReview, then SubjectAccessReview.

One rule: a token goes to the API server and nowhere else: into no log, no answer and no message of an error.
"""

import asyncio
from pathlib import Path

from mpsd.platform.kube import Kube, KubeError, Resource, open_kube
from mpsd.platform.rules.readers import (
    NOT_KNOWN,
    TOO_MANY,
    Verdict,
    access_review,
    away,
    is_allowed,
    lets_in,
    no_right,
    reviewed_user,
    token_review,
)

_TOKENS = Resource("authentication.k8s.io/v1", "tokenreviews")
_ACCESS = Resource("authorization.k8s.io/v1", "subjectaccessreviews")
_MOST_AT_ONCE = 8  # who makes tokens up costs the API server no more than this
_PATIENCE_S = 5.0  # for one's turn: half of what Prometheus waits for a scrape


class TokenReviewer:
    """It has a connection of its own, so that whoever sends many tokens holds up none of mpsd's other questions."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)  # who came first is asked about first

    async def review(self, token: str, path: str) -> Verdict:
        """Whether who has this token may get this path; a 503 where the API server cannot say."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError:
            return TOO_MANY
        try:
            return await self._asked(token, path)
        except KubeError as error:
            return away(str(error).replace(token, "…"))
        finally:
            self._turns.release()

    async def _asked(self, token: str, path: str) -> Verdict:
        user = reviewed_user(await self._kube.create(_TOKENS, token_review(token)))
        if user is None:
            return NOT_KNOWN
        allowed = is_allowed(await self._kube.create(_ACCESS, access_review(user, path)))
        return lets_in(user) if allowed else no_right(user, path)

    def close(self) -> None:
        self._kube.close()


def token_reviewer(kubeconfig: Path | None) -> TokenReviewer:
    """kubeconfig None: the service account of this pod. Away where neither can be read; nobody is asked yet."""
    return TokenReviewer(open_kube(kubeconfig))
