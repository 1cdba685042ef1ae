"""The newest cut, streamed to a client that was never seen."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.admission import admit
from gateway.exchange import Exchange
from gateway.forms import ID
from gateway.frames import frame_files, visible_frames
from gateway.metrics import Metrics
from gateway.operations import Operation, Parameter
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.model.errors import NotFoundError

log = structlog.get_logger("gateway")

MEDIA = "application/x-lakesync-checkpoint-stream"


async def checkpoint(request: Request) -> Response:
    """Stream the frames of the newest cut, cut down to what the client may see."""
    caller = await admit(request)
    client_id = caller.client_id(request.query_params.get("clientId"))
    Exchange.of(request).client = client_id
    claims = caller.claims(client_id)
    cut = await outcome(await run_in_threadpool(caller.gateway.submit_checkpoint, client_id, claims))
    config = await run_in_threadpool(caller.gateway.config)
    try:
        files = await run_in_threadpool(frame_files, cut, config.rules)
    except FileNotFoundError as error:
        log.exception("checkpoint frame is gone", gateway=cut.gateway, arrival=cut.arrival)
        raise NotFoundError("the newest checkpoint is damaged: pull from 0 instead") from error
    if config.rules_version != cut.rules_version:
        raise NotFoundError("the rules are newer than the newest checkpoint: pull from 0 instead")
    metrics = Services.of(request).metrics
    metrics.checkpoints.inc()
    frames = _counted(visible_frames(files, config.rules, claims), metrics)
    return StreamingResponse(frames, media_type=MEDIA, headers={"X-Checkpoint-Hlc": str(cut.arrival)})


def _counted(frames: Iterator[bytes], metrics: Metrics) -> Iterator[bytes]:
    for frame in frames:
        metrics.checkpoint_bytes.inc(len(frame))
        yield frame


OPERATIONS = (
    Operation(
        "GET",
        "/sync/{gateway}/checkpoint",
        checkpoint,
        "Stream the newest checkpoint: a 4-byte big-endian length and a protobuf SyncResponse, repeated",
        parameters=(Parameter("clientId", "Who asks, where the server runs without a secret", ID),),
        answer_media=(MEDIA,),
        answer_headers=(
            Parameter(
                "X-Checkpoint-Hlc", "The cursor to pull from", {"type": "string", "pattern": "^[0-9]+$"}, "header"
            ),
        ),
        errors=(NotFoundError,),
    ),
)
