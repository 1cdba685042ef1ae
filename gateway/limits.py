"""What a caller may ask of the gateway: the size of a body and the number of requests a second."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable

from starlette.requests import Request

from gateway.heads import header
from lakesync.model.errors import PayloadTooLargeError, RateLimitedError, ValidationError

MAX_CLIENTS = 100_000

_GZIP = 16 + zlib.MAX_WBITS
_WINDOW = 10


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body, unpacked; reading stops as soon as it is above `limit` bytes, packed or unpacked.

    Raises:
        PayloadTooLargeError: the body is above the limit.
        ValidationError: the content encoding is unknown, or the body is not what it says.
    """
    declared = header(request.scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    body = b"".join(chunks)
    encoding = header(request.scope, b"content-encoding")
    if encoding is None or encoding.lower() == "identity":
        return body
    if encoding.lower() == "gzip":
        return _gunzip(body, limit)
    raise ValidationError(f"the content encoding {encoding!r} is unknown; send gzip, or the body as it is")


def _gunzip(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValidationError(f"the body is not gzip, though its content encoding says so: {error}") from error
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise ValidationError("the gzip body must be one whole member; this one ends too early or goes on")
    return unpacked


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body is above the limit of {limit} bytes; send it in smaller parts")


class RateLimit:
    """So many requests a second for each client, averaged over ten seconds so that a burst passes.

    Counted in fixed windows: the counts of all clients go away together, so nothing has to be tidied up. Where more
    than `MAX_CLIENTS` come in one window, a new one begins, so that memory is bounded.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._allowed = max(1, round(per_second * _WINDOW))
        self._now = now
        self._counts: Counter[tuple[str, str]] = Counter()
        self._ends = 0.0

    def check(self, gateway: str, client_id: str) -> None:
        """Count one request.

        Raises:
            RateLimitedError: the client is above its share.
        """
        now = self._now()
        if now >= self._ends or len(self._counts) >= MAX_CLIENTS:
            self._counts, self._ends = Counter(), now + _WINDOW
        self._counts[gateway, client_id] += 1
        if self._counts[gateway, client_id] > self._allowed:
            raise RateLimitedError(
                f"more than {self._allowed} requests in {_WINDOW} s; wait before the next",
                retry_after=self._ends - now,
            )
