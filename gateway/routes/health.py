"""The routes `/health` and `/ready`: whether the process responds, and whether it accepts requests or why not.

Orchestrators such as Kubernetes call them: `/health` to restart a process, `/ready` to route requests to it.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from gateway.openapi_schemas import ApiModel, error_responses
from gateway.services import Services, ServicesDependency
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Backlog

router = APIRouter()

STORE_TIMEOUT_SECONDS = 5.0
"""Seconds within which the staging store must respond to a small query."""


class Health(ApiModel):
    """`ok` for `/health`, `ready` for `/ready`."""

    status: str


@router.get("/health", summary="Check that the process answers", responses=error_responses())
async def health() -> Health:
    """Return `ok` while the process answers."""
    return Health(status="ok")


@router.get(
    "/ready",
    summary="Check that the server accepts requests; the error begins with what is missing: "
    "starting, draining, store, disk, behind",
    responses=error_responses(),
)
async def ready(services: ServicesDependency) -> Health:
    """Return `ready` while the server accepts requests; otherwise the error of `check_ready`, with status 503."""
    await check_ready(services)
    return Health(status="ready")


async def check_ready(services: Services) -> None:
    """Check everything that the server needs to accept requests: the store, free disk space and the backlog.

    Args:
        services: the server's shared objects.

    Raises:
        StagingUnavailableError: something is missing; the message begins with `starting`, `draining`, `store`, `disk`
            or `behind`.
    """
    if services.gate.rejection_reason is not None:
        raise StagingUnavailableError(services.gate.rejection_reason, retry_after=1)
    try:
        async with asyncio.timeout(STORE_TIMEOUT_SECONDS):
            backlog = await run_in_threadpool(services.engine.store.backlog)
    except TimeoutError:
        raise StagingUnavailableError(f"store: staging did not answer within {STORE_TIMEOUT_SECONDS:g} s") from None
    except StagingUnavailableError as error:
        raise StagingUnavailableError(f"store: {error}") from error
    settings = services.settings
    for folder in settings.staging_folders:
        _check_disk(folder, settings.min_free_disk_bytes)
    _check_backlog(backlog, settings.limits.max_backpressure_bytes)


def _check_disk(folder: Path, min_free_bytes: int) -> None:
    """Check that the disk of the staging store has room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StagingUnavailableError(f"disk: the folder of staging cannot be looked at: {error}") from error
    if free < min_free_bytes:
        raise StagingUnavailableError(
            f"disk: {free} bytes are free for staging, {min_free_bytes} are needed: make room"
        )


def _check_backlog(backlog: list[Backlog], max_bytes: int) -> None:
    """Check that at least one shard of one gateway accepts pushes.

    Each shard of a gateway has its own limit. If only some are above it, their pushes are rejected, and the server is
    ready nevertheless.
    """
    if backlog and all(shard.bytes > max_bytes for shard in backlog):
        gateways = len({shard.gateway for shard in backlog})
        raise StagingUnavailableError(
            f"behind: all {gateways} gateways hold more than {max_bytes} bytes that are not yet in the lake: "
            "check that the pipeline runs"
        )
