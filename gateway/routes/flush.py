"""The route `POST /admin/flush/{gateway}`: an admin requests a flush, and may wait for it."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool

from gateway.dependencies import AdminCaller, Caller
from gateway.openapi_schemas import CALLER_ERRORS, ApiModel, error_responses
from gateway.services import ServicesDependency
from lakesync.analysis.marks import report_in
from lakesync.staging.records import Backlog

router = APIRouter()

POLL_SECONDS = 0.25
"""Seconds between two reads of the backlog while a request waits for its flush."""

_MARGIN_SECONDS = 2.0
"""Seconds before the request's timeout at which the wait ends."""

_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][-+]?[0-9]{1,3})?")
"""A number in JSON's syntax; `float` accepts more."""


class FlushRequested(ApiModel):
    """The answer to a request for a flush."""

    requested: bool
    flushed: bool | None = None
    """Whether everything that was unflushed at the request is in the lake's `deltas`; absent if it was not awaited."""
    merged: bool | None = None
    """Whether it is in the state tables and the checkpoint too; absent without a pipeline."""
    snapshot_id: str | None = None
    """Iceberg snapshot of `deltas` in which it was read back; absent without a pipeline."""


def _check_number(text: Any) -> Any:
    if isinstance(text, str) and not _NUMBER.fullmatch(text):
        raise ValueError("it must be a number, give seconds from 0 to 3600")
    return text


@router.post(
    "/admin/flush/{gateway}",
    summary="Request a flush of everything unflushed",
    status_code=202,
    response_model_exclude_none=True,
    responses=error_responses(*CALLER_ERRORS),
)
async def flush(
    caller: AdminCaller,
    services: ServicesDependency,
    wait: Annotated[
        float,
        Field(ge=0, le=3600),
        BeforeValidator(_check_number),
        Query(description="Seconds to wait until everything is in the lake; the request timeout limits it"),
    ] = 0.0,
) -> FlushRequested:
    """Request a flush of everything unflushed, and wait for it if `wait` is given."""
    seconds = min(wait, max(0.0, services.settings.request_timeout - _MARGIN_SECONDS))
    wanted = {shard.shard: shard for shard in await run_in_threadpool(caller.gateway.backlog)}
    await run_in_threadpool(caller.gateway.request_flush)
    if not seconds:
        return FlushRequested(requested=True)
    marks = await run_in_threadpool(services.engine.store.marks)
    return await _wait_for_flush(caller, wanted, seconds, by_pipeline=report_in(marks) is not None)


async def _wait_for_flush(
    caller: Caller, wanted: dict[str, Backlog], seconds: float, *, by_pipeline: bool
) -> FlushRequested:
    """Wait until the history contains everything that was unflushed.

    Args:
        caller: the authenticated caller, whose gateway is flushed.
        wanted: shard → its backlog at the time of the request.
        seconds: seconds to wait, at most.
        by_pipeline: whether a pipeline merges the flushed deltas into state tables.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        shards = await run_in_threadpool(caller.gateway.backlog)
        known = [(shard, wanted[shard.shard]) for shard in shards if shard.shard in wanted]
        flushed = all(now.flushed_seq >= before.last_seq for now, before in known)
        merged = flushed and all((now.checkpoint_arrival or 0) >= before.last_arrival for now, before in known)
        if flushed or loop.time() >= deadline:
            return FlushRequested(
                requested=True,
                flushed=flushed,
                merged=merged if by_pipeline else None,
                snapshot_id=_newest_snapshot(shards) if flushed else None,
            )
        await asyncio.sleep(POLL_SECONDS)


def _newest_snapshot(shards: list[Backlog]) -> str | None:
    """Return the id of the snapshot of the shard that was flushed last; it has the other shards' flushes too."""
    newest = max(shards, key=lambda shard: shard.flushed_ms or 0, default=None)
    return None if newest is None or newest.flushed_snapshot is None else str(newest.flushed_snapshot)
