"""Whether the server can take work, and if not, why."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from gateway.services import Services
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging.records import Backlog

STORE_SECONDS = 5.0
"""What the store has to answer a small question."""


async def check_ready(services: Services) -> None:
    """Ask everything that taking work needs.

    Raises:
        StagingUnavailableError: the message begins with what is missing: `starting`, `draining`, `store`, `disk`,
            `behind`.
    """
    if services.drain.refusing is not None:
        raise StagingUnavailableError(services.drain.refusing, retry_after=1)
    try:
        async with asyncio.timeout(STORE_SECONDS):
            backlog = await run_in_threadpool(services.engine.store.backlog)
    except TimeoutError:
        raise StagingUnavailableError(f"store: staging did not answer within {STORE_SECONDS:g} s") from None
    except StagingUnavailableError as error:
        raise StagingUnavailableError(f"store: {error}") from error
    settings = services.settings
    for folder in settings.staging_folders:
        _check_disk(folder, settings.min_free_disk_bytes)
    _check_behind(backlog, settings.limits.max_backpressure_bytes)


def _check_disk(folder: Path, least: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StagingUnavailableError(f"disk: the folder of staging cannot be looked at: {error}") from error
    if free < least:
        raise StagingUnavailableError(f"disk: {free} bytes are free for staging, {least} are needed: make room")


def _check_behind(backlog: list[Backlog], most: int) -> None:
    """One tenant that is behind is told so by its pushes; the server is not ready where it could take none at all.

    Backpressure is each shard's own: while one has room, pushes to its tables are taken.
    """
    if backlog and all(shard.bytes > most for shard in backlog):
        gateways = len({shard.gateway for shard in backlog})
        raise StagingUnavailableError(
            f"behind: all {gateways} gateways hold more than {most} bytes that are not yet in the lake: "
            "see that the pipeline runs"
        )
