"""What comes in and goes out: JSON or protobuf, as the request says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.heads import header
from gateway.limits import read_body
from gateway.operations import JSON, PROTOBUF
from lakesync.model.errors import ValidationError
from lakesync.model.types import PushResult, SyncPage, SyncPull, SyncPush, SyncResponse
from lakesync.wire import json, protobuf
from lakesync.wire.spelled import encode_page

_LARGE_BYTES = 32 << 10
"""Of a push that the event loop does not decode itself."""


async def read_push(request: Request, limit: int) -> SyncPush:
    """A push.

    Raises:
        ValidationError: the body is not a push.
        PayloadTooLargeError: it is above `limit` bytes.
    """
    body = await read_body(request, limit)
    return await decoded_push(protobuf.decode_push if sends_protobuf(request) else json.decode_push, body)


async def decoded_push(decode: Callable[[bytes], SyncPush], body: bytes) -> SyncPush:
    """A decoded push; a large one is decoded in a worker thread, as each of its values is made canonical.

    A mebibyte of nested values takes the processor for half a second, in which the event loop would serve nobody else.

    Raises:
        ValidationError: as `decode`.
    """
    return decode(body) if len(body) <= _LARGE_BYTES else await asyncio.to_thread(decode, body)


async def read_pull(request: Request, limit: int) -> SyncPull:
    """A pull that was posted.

    Raises:
        ValidationError: the body is not a pull.
        PayloadTooLargeError: it is above `limit` bytes.
    """
    body = await read_body(request, limit)
    return protobuf.decode_pull(body) if sends_protobuf(request) else json.decode_pull(body)


async def read_object(request: Request, limit: int) -> Any:
    """Any JSON value.

    Raises:
        ValidationError: the body is not JSON.
        PayloadTooLargeError: it is above `limit` bytes.
    """
    try:
        return msgspec.json.decode(await read_body(request, limit))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValidationError(f"the body is not JSON: {error}") from error


def push_response(request: Request, result: PushResult) -> Response:
    """The answer to a push, in the form that the push had; protobuf has no room for `accepted`."""
    if sends_protobuf(request):
        page = SyncResponse(result.deltas, result.server_hlc)
        return Response(protobuf.encode_response(page), media_type=PROTOBUF)
    return Response(json.encode_push_result(result), media_type=JSON)


def pull_response(request: Request, page: SyncPage) -> Response:
    """The answer to a pull: protobuf where it was asked in that form or accepts it."""
    if sends_protobuf(request) or PROTOBUF in request.headers.get("accept", ""):
        return Response(protobuf.encode_response(page), media_type=PROTOBUF)
    return Response(encode_page(page), media_type=JSON)


def json_response(value: Any, status: int = 200) -> Response:
    """Any other answer."""
    return Response(json.encode_json(value), status, media_type=JSON)


def sends_protobuf(request: Request) -> bool:
    """Whether the body is protobuf, and the answer is to be."""
    given = header(request.scope, b"content-type")
    return given is not None and given.partition(";")[0].strip().lower() == PROTOBUF
