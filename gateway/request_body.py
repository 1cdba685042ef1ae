"""Reads bodies of requests and builds those of responses: size limits, gzip, and JSON or protobuf by content type.

The routes call it; WebSocket connections use `decode_if_large` and `encode_protobuf`. A page is the response to a pull:
deltas (changes of rows) that a client lacks. What takes long is done in a worker thread, because the event loop serves
all clients.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.dependencies import ServicesDependency
from gateway.openapi_schemas import JSON, PROTOBUF
from gateway.request_log import header
from lakesync.model.errors import PayloadTooLargeError, ValidationError
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json, protobuf
from lakesync.wire.encoded import EncodedDeltas, encode_page
from lakesync.wire.malformed import MalformedDeltasError

T = TypeVar("T")

_LARGE_BYTES = 32 << 10
"""Size above which bodies are decoded, and protobuf pages encoded, in a worker thread."""
_UNPACKED_BYTES = 1 << 20
"""If a body may be larger than this, it is unpacked in a worker thread: the pipeline's 64 MiB take 80 ms."""
_GZIP = 16 + zlib.MAX_WBITS
"""The parameter with which zlib reads the gzip format."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the request's body, unpacked if it is gzipped.

    Args:
        request: the request to read.
        limit: bytes of the packed and of the unpacked body, at most; reading stops above it.

    Raises:
        PayloadTooLargeError: the body is above the limit.
        ValidationError: the content encoding is unknown, or the body is not gzip although the header says so.
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
        return _gunzip(body, limit) if limit <= _UNPACKED_BYTES else await asyncio.to_thread(_gunzip, body, limit)
    raise ValidationError(f"the content encoding {encoding!r} is unknown; send gzip, or an uncompressed body")


def _gunzip(body: bytes, limit: int) -> bytes:
    """Unpack a gzipped body of at most `limit` unpacked bytes."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise ValidationError(f"the body is not gzip, though its content encoding says so: {error}") from error
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise ValidationError(
            "the gzip body must be exactly one complete member; it is truncated, or has data after its end"
        )
    return unpacked


def _too_large(limit: int) -> PayloadTooLargeError:
    """Return the error for a body above the limit."""
    return PayloadTooLargeError(f"the body is above the limit of {limit} bytes; send it in smaller parts")


async def limited_body(request: Request, services: ServicesDependency) -> bytes:
    """Dependency: returns the request's body, which has at most `max_body_bytes` bytes."""
    return await read_body(request, services.settings.limits.max_body_bytes)


LimitedBody = Annotated[bytes, Depends(limited_body)]
"""The type of a route's parameter that gets the request's body."""


def parse_json(body: bytes) -> Any:
    """Parse a body as JSON. A mebibyte takes up to 100 ms, so call it in a worker thread.

    Raises:
        ValidationError: the body is not JSON.
    """
    return json.read("the body is not JSON", msgspec.json.decode, body)


DecodedPush = tuple[SyncPush, ValidationError | None]
"""A push without its malformed deltas, and their error; None if no delta is malformed."""


def push_decoder(request: Request) -> Callable[[bytes], DecodedPush]:
    """Return the decoder of a push in the format of a request's body, by its content type: JSON or protobuf.

    It raises ValidationError for a body that is not a push.
    """
    decode = protobuf.decode_push if sends_protobuf(request) else json.decode_push

    def decode_push(body: bytes) -> DecodedPush:
        try:
            return decode(body), None
        except MalformedDeltasError as error:
            return error.others, ValidationError(str(error), error.rejected)

    return decode_push


async def decode_if_large(decode: Callable[[bytes], T], body: bytes) -> Callable[[], T]:
    """Return a function that returns the decoded push or actions.

    A mebibyte of nested values takes half a second to decode. In the thread of the event loop or of the store, that
    would delay all clients. So a large body is decoded now, in a worker thread; a small one when the function is
    called.

    Args:
        decode: the decoder of the body's format.
        body: the encoded push or actions.

    Raises:
        ValidationError: a large body is of another form.
    """
    if len(body) <= _LARGE_BYTES:
        return partial(decode, body)
    decoded = await asyncio.to_thread(decode, body)
    return lambda: decoded


def decode_pull(request: Request, body: bytes) -> SyncPull:
    """Decode a pull from a request's body, which is JSON or protobuf.

    Args:
        request: the request, whose content type names the format.
        body: the request's body.

    Raises:
        ValidationError: the body is not a pull request.
    """
    return protobuf.decode_pull(body) if sends_protobuf(request) else json.decode_pull(body)


def push_response(request: Request, result: PushResult) -> Response:
    """Return the response to a push in the format of the request. Protobuf has no field for `accepted`.

    Args:
        request: the request.
        result: the result of the push.
    """
    if sends_protobuf(request):
        page = SyncResponse(result.deltas, result.server_hlc)
        return Response(protobuf.encode_response(page), media_type=PROTOBUF)
    return Response(json.encode_push_result(result), media_type=JSON)


async def encode_protobuf(page: SyncPage) -> bytes:
    """Encode a page as protobuf. A large page is encoded in a worker thread, because 4 MiB take up to 0.3 s.

    Args:
        page: the page, whose deltas may still be JSON.
    """
    if isinstance(page.deltas, EncodedDeltas):
        size = page.deltas.size
    else:  # an estimate
        size = sum(len(cell.value) for delta in page.deltas for cell in delta.columns)
    if size <= _LARGE_BYTES:
        return protobuf.encode_response(page)
    return await asyncio.to_thread(protobuf.encode_response, page)


async def pull_response(request: Request, page: SyncPage) -> Response:
    """Return the response to a pull: protobuf if the request is protobuf or accepts it, else JSON.

    Args:
        request: the request.
        page: the page for the client.
    """
    if sends_protobuf(request) or PROTOBUF in (header(request.scope, b"accept") or ""):
        return Response(await encode_protobuf(page), media_type=PROTOBUF)
    return Response(encode_page(page), media_type=JSON)


def json_response(value: Any) -> Response:
    """Return a response with a value as JSON. Integers under keys named `hlc` or `*Hlc` become strings.

    Args:
        value: any value that msgspec can encode.
    """
    return Response(json.encode_json(value), media_type=JSON)


def sends_protobuf(request: Request) -> bool:
    """Return whether the request's content type is protobuf."""
    given = header(request.scope, b"content-type")
    return given is not None and given.partition(";")[0].strip().lower() == PROTOBUF
