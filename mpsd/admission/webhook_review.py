"""Answers one AdmissionReview: from HTTP to `admission.rules.admission_review` and back.

One rule: what cannot be read is answered with a 4xx that says why, and what can be is answered at once; only what the
core asks for is looked up, and not for long.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from aiohttp import web

from mpsd.admission.metrics import WebhookMetrics
from mpsd.admission.rules.admission_review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    Needs,
    Review,
    mutate,
    needed_to_mutate,
    needed_to_validate,
    read_review,
    validate,
)
from mpsd.admission.webhook_lookups import Lookups
from mpsd.platform.limits_files import Limits
from mpsd.platform.listener import BodyRefused, json_answer, read_body

LONGEST_BODY = 3 * 1024**2  # the API server's own limit on a request
_BODY_S = 3.0  # an API server waits 5 s for all of it
_LARGE_BODY = 128 * 1024  # of this size a review takes 0.2 s at the very worst; of 3 MiB, half a second
_NOTHING_SEEN = AdmissionContext()


Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class _Webhook:
    """One of the two webhooks. name: as its path and its metrics have it."""

    name: str
    needed: Callable[[Review, Limits], Needs]
    answer: Callable[[Review, Limits, AdmissionContext], AdmissionAnswer]


_VALIDATE = _Webhook(
    "validate",
    lambda review, limits: needed_to_validate(review, limits.policy, limits.facts),
    lambda review, limits, seen: validate(review, limits.policy, limits.facts, seen),
)
_MUTATE = _Webhook(
    "mutate",
    lambda review, limits: needed_to_mutate(review, limits.policy),
    lambda review, limits, seen: mutate(review, limits.policy, seen),
)


class ReviewApi:
    """limits: those in force now."""

    def __init__(self, limits: Callable[[], Limits], lookups: Lookups, metrics: WebhookMetrics) -> None:
        self._limits = limits
        self._lookups = lookups
        self._metrics = metrics
        self._aside = ThreadPoolExecutor(1, "large-reviews")  # one, so that large ones wait for each other

    async def validate(self, request: web.Request) -> web.Response:
        return await self._respond(_VALIDATE, request)

    async def mutate(self, request: web.Request) -> web.Response:
        return await self._respond(_MUTATE, request)

    async def _respond(self, webhook: _Webhook, request: web.Request) -> web.Response:
        """200 with the answer; 4xx with the reason for what is no review."""
        began = time.perf_counter()
        try:
            body = await read_body(request, "application/json", LONGEST_BODY, _BODY_S)
            answer = await self._answer(webhook, body)
        except BodyRefused as refused:
            return self._refuse(webhook, refused.status, str(refused))
        except MalformedReview as error:
            return self._refuse(webhook, 400, str(error))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._refuse(webhook, 400, f"the body is not JSON: {error}")
        except RecursionError:
            return self._refuse(webhook, 400, "the body is nested too deeply")
        self._metrics.reviewed(webhook.name, answer, time.perf_counter() - began)
        return json_answer(answer.record())

    async def _answer(self, webhook: _Webhook, body: bytes) -> AdmissionAnswer:
        limits = self._limits()
        review, needs = await self._think(body, lambda: self._read(webhook, body, limits))
        seen = await self._look_up(needs)
        return await self._think(body, lambda: webhook.answer(review, limits, seen))

    def _read(self, webhook: _Webhook, body: bytes, limits: Limits) -> tuple[Review, Needs]:
        review = read_review(msgspec.json.decode(body))
        return review, webhook.needed(review, limits)

    async def _think(self, body: bytes, decide: Callable[[], Said]) -> Said:
        """Decides at once, or beside the loop where that may take long and small reviews would wait for it."""
        if len(body) <= _LARGE_BODY:
            return decide()
        return await asyncio.get_running_loop().run_in_executor(self._aside, decide)

    async def _look_up(self, needs: Needs) -> AdmissionContext:
        """Everything at once; nothing for an object that needs nothing."""
        if not needs.namespace and not needs.config_maps:
            return _NOTHING_SEEN
        if not needs.config_maps:  # the labels are known most of the time, and then nothing is waited for
            return AdmissionContext(await self._lookups.namespace_labels(needs.namespace))
        labels, config_maps = await asyncio.gather(
            self._lookups.namespace_labels(needs.namespace), self._lookups.config_map_keys(needs.config_maps)
        )
        return AdmissionContext(labels, config_maps)

    def _refuse(self, webhook: _Webhook, status: int, reason: str) -> web.Response:
        self._metrics.refused(webhook.name, status)
        return web.Response(status=status, text=f"{reason}\n")
