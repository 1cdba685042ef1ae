"""How much is set aside of a gateway: by the pipeline, as it last reported, and by the gateway's own flushes."""

from __future__ import annotations

from collections.abc import Mapping

from lakesync.analysis.marks import DeadLetters, report_in
from lakesync.flush import FlushQueue
from lakesync.model.hlc import wall_of


def dead_letters(marks: Mapping[str, str], queue: FlushQueue | None, gateway: str) -> list[DeadLetters]:
    """Return what is set aside of a gateway, by kind and place.

    Args:
        marks: of staging, among which is the pipeline's report.
        queue: work that follows the gateway's own flushes; None where the pipeline flushes.
        gateway: its id.
    """
    report = report_in(marks)
    found = [each for each in report.dead_letters if each.gateway in ("", gateway)] if report is not None else []
    work: dict[str, list[int]] = {}
    for job in queue.failed(gateway) if queue is not None else ():
        work.setdefault(job.work.table, []).append(wall_of(job.context.arrival))
    return [*found, *(DeadLetters("work", table, gateway, len(since), min(since)) for table, since in work.items())]
