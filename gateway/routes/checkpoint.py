"""The route `GET /sync/{gateway}/checkpoint`: it streams the newest checkpoint to a client that was not seen before.

A checkpoint is all rows of a gateway (one app's stream of changes) at some arrival (its timestamp of a push), which the
pipeline stores in files of frames. A new client reads it instead of pulling everything, and then pulls from its
arrival. A frame is a length-prefixed protobuf message with rows of one table; `gateway.checkpoint_frames` reduces it to
the rows that the client may see by the sync rules. A checkpoint from before a change of the rules is not served,
because a pull from its arrival would send the effects of the change again.

`create_app` includes the router.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from gateway.checkpoint_frames import frame_files, visible_frames
from gateway.dependencies import ClientCaller, ServicesDependency
from gateway.futures import result_of
from gateway.metrics import Metrics
from gateway.openapi_schemas import CALLER_ERRORS, AnyId, error_responses
from gateway.request_log import RequestRecord
from lakesync.model.errors import ConfigurationError, NotFoundError

log = structlog.get_logger("gateway")

router = APIRouter()

MEDIA_TYPE = "application/x-lakesync-checkpoint-stream"
"""Media type of a stream of frames."""


class CheckpointResponse(StreamingResponse):
    """A stream of frames, each a 4-byte big-endian length and a protobuf SyncResponse."""

    media_type = MEDIA_TYPE


@router.get(
    "/sync/{gateway}/checkpoint",
    summary="Stream the newest checkpoint in frames, each a 4-byte big-endian length and a protobuf SyncResponse",
    response_class=CheckpointResponse,
    responses=error_responses(*CALLER_ERRORS)
    | {
        200: {
            "content": {MEDIA_TYPE: {}},
            "headers": {
                "X-Checkpoint-Hlc": {  # the checkpoint's arrival
                    "description": "The cursor to pull from",
                    "schema": {"type": "string", "pattern": "^[0-9]+$"},
                }
            },
        }
    },
)
async def checkpoint(
    request: Request,
    caller: ClientCaller,
    services: ServicesDependency,
    client_id: Annotated[
        AnyId | None,
        Query(alias="clientId", description="Client id, if the server runs without a secret"),
    ] = None,
) -> CheckpointResponse:
    """Stream the newest checkpoint's frames, reduced to the rows that the client may see."""
    named = caller.client_id(client_id)
    RequestRecord.of(request).set_client(named)
    claims = caller.claims(named)
    snapshot = await result_of(await run_in_threadpool(caller.gateway.submit_checkpoint, named, claims))
    config = await run_in_threadpool(caller.gateway.config)
    try:
        files = await run_in_threadpool(frame_files, snapshot, config.rules)
    except (FileNotFoundError, ConfigurationError) as error:
        log.exception("checkpoint not served", gateway=snapshot.gateway, arrival=snapshot.arrival)
        raise NotFoundError("the newest checkpoint cannot be read: pull from 0 instead") from error
    if config.rules_version != snapshot.rules_version:  # the rules changed after `submit_checkpoint` compared them
        raise NotFoundError("the rules are newer than the newest checkpoint: pull from 0 instead")
    services.metrics.checkpoints.inc()
    frames = _counted(visible_frames(files, config.rules, claims), services.metrics)
    return CheckpointResponse(frames, headers={"X-Checkpoint-Hlc": str(snapshot.arrival)})


def _counted(frames: Iterator[bytes], metrics: Metrics) -> Iterator[bytes]:
    """Yield frames, and count their bytes in the metrics as they are sent."""
    for frame in frames:
        metrics.checkpoint_bytes.inc(len(frame))
        yield frame
