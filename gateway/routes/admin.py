"""What an admin asks of the pipeline."""

from __future__ import annotations

import asyncio
import re

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import Caller, admit
from gateway.operations import Operation, Parameter
from gateway.services import Services
from lakesync.exceptions import ValidationError
from lakesync.staging.records import Backlog

LOOK_SECONDS = 0.25
"""Between two looks at what waits, while a request waits for its flush."""

_MARGIN_SECONDS = 2.0
"""By which a wait ends before the request would time out."""

_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][-+]?[0-9]{1,3})?")
"""JSON's form of a number, which `float` is more lenient than."""


class FlushRequested(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The request was noted; the pipeline serves it."""

    requested: bool
    flushed: bool | None = None
    """Where it was waited for: whether all that waited when it was asked is in the lake."""
    snapshot_id: str | None = None
    """The snapshot of the lake's `deltas` in which that was read back; absent without a pipeline."""


async def flush(request: Request) -> Response:
    """Ask the pipeline to carry what waits to the lake now, and wait for it where that is asked."""
    caller = await admit(request, admin=True)
    seconds = _wait(request.query_params.get("wait"))
    seconds = min(seconds, max(0.0, Services.of(request).settings.request_timeout - _MARGIN_SECONDS))
    wanted = {shard.shard: shard.last_seq for shard in await run_in_threadpool(caller.gateway.backlog)}
    await run_in_threadpool(caller.gateway.request_flush)
    answer = await _served(caller, wanted, seconds) if seconds else FlushRequested(True)
    return bodies.json_response(answer, 202)


async def _served(caller: Caller, wanted: dict[str, int], seconds: float) -> FlushRequested:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        shards = await run_in_threadpool(caller.gateway.backlog)
        if all(shard.flushed_seq >= wanted.get(shard.shard, 0) for shard in shards):
            return FlushRequested(True, True, _newest_snapshot(shards))
        if loop.time() >= deadline:
            return FlushRequested(True, False)
        await asyncio.sleep(LOOK_SECONDS)


def _newest_snapshot(shards: list[Backlog]) -> str | None:
    """Of shards that were flushed one after another, the last one's holds what the others carried too."""
    newest = max(shards, key=lambda shard: shard.flushed_ms or 0, default=None)
    return None if newest is None or newest.flushed_snapshot is None else str(newest.flushed_snapshot)


def _wait(text: str | None) -> float:
    if text is None:
        return 0.0
    seconds = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= seconds <= 3600:
        raise ValidationError(f"wait is {text[:40]!r}: give seconds from 0 to 3600")
    return seconds


OPERATIONS = (
    Operation(
        "POST",
        "/admin/flush/{gateway}",
        flush,
        "Ask for a flush of what waits",
        access="admin",
        parameters=(
            Parameter(
                "wait",
                "Seconds to wait until it is in the lake; at most a little less than a request may take",
                {"type": "number", "minimum": 0, "maximum": 3600},
            ),
        ),
        answer=FlushRequested,
        status=202,
        errors=(ValidationError,),
    ),
)
