"""The bodies of HTTP requests: none is unpacked, and each is bounded in bytes and seconds before it
is parsed."""

import asyncio

from aiohttp import web

from mpsd.model.problem import shown

JSON = "application/json"
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_BODY_S = 10.0


class BodyRefused(Exception):
    """status: of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


def check_body(request: web.Request) -> None:
    """BodyRefused for a body that is packed, or that comes with a question that has none."""
    if packed := request.headers.getall("Content-Encoding", []):
        raise BodyRefused(415, f"the body is packed ({shown(packed)}); send it as it is")
    if request.method in _WITHOUT_BODY and request.body_exists:
        raise BodyRefused(400, f"a {request.method} has no body here; send it without one")


async def read_body(request: web.Request, deadline_s: float = _BODY_S) -> bytes:
    """BodyRefused: 413 too long, 408 too slow."""
    too_long = BodyRefused(413, f"the body is longer than {request.client_max_size} bytes")
    if (request.content_length or 0) > request.client_max_size:
        raise too_long
    try:
        # mostly so, and a deadline costs as much as to read it
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(deadline_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_long from None
    except web.RequestPayloadError as error:  # such as chunks that are none
        raise BodyRefused(400, f"the body cannot be read: {error}") from None
    except TimeoutError:
        raise BodyRefused(408, f"the body did not arrive within {deadline_s:g} s") from None


async def read_json(request: web.Request, deadline_s: float) -> bytes:
    """BodyRefused: as `read_body`, and 415 for another type."""
    if request.content_type != JSON:
        raise BodyRefused(415, f"the content type is {request.content_type}; send {JSON}")
    return await read_body(request, deadline_s)
