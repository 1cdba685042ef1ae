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
from lakesync.analysis.marks import report_in
from lakesync.model.errors import ValidationError
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
    """Where it was waited for: whether all that waited when it was asked is in the lake's `deltas`."""
    merged: bool | None = None
    """Whether it is in the state tables and the checkpoint too; absent without a pipeline."""
    snapshot_id: str | None = None
    """The snapshot of the lake's `deltas` in which that was read back; absent without a pipeline."""


async def flush(request: Request) -> Response:
    """Ask the pipeline to carry what waits to the lake now, and wait for it where that is asked."""
    caller = await admit(request, admin=True)
    seconds = _wait(request.query_params.get("wait"))
    seconds = min(seconds, max(0.0, Services.of(request).settings.request_timeout - _MARGIN_SECONDS))
    wanted = {shard.shard: shard for shard in await run_in_threadpool(caller.gateway.backlog)}
    await run_in_threadpool(caller.gateway.request_flush)
    if not seconds:
        return bodies.json_response(FlushRequested(True), 202)
    marks = await run_in_threadpool(Services.of(request).engine.store.marks)
    answer = await _served(caller, wanted, seconds, by_pipeline=report_in(marks) is not None)
    return bodies.json_response(answer, 202)


async def _served(caller: Caller, wanted: dict[str, Backlog], seconds: float, *, by_pipeline: bool) -> FlushRequested:
    """Wait until everything wanted is in `deltas`; with a pipeline, say whether tables and checkpoint have it too."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        shards = await run_in_threadpool(caller.gateway.backlog)
        known = [(shard, wanted[shard.shard]) for shard in shards if shard.shard in wanted]
        flushed = all(now.flushed_seq >= before.last_seq for now, before in known)
        merged = flushed and all((now.cut_arrival or 0) >= before.last_arrival for now, before in known)
        if flushed or loop.time() >= deadline:
            snapshot = _newest_snapshot(shards) if flushed else None
            return FlushRequested(True, flushed, merged if by_pipeline else None, snapshot)
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
