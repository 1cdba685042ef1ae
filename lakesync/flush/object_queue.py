"""Jobs as objects: they outlive every process, and any of them may work them off.

`materialise-jobs/GATEWAY/JOB.json`; those set aside are under `materialise-failed/GATEWAY/`, and what is no job at all
under `materialise-unreadable/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from urllib.parse import quote

import msgspec
import structlog

from lakesync.adapters import open_adapter
from lakesync.adapters.base import is_object_store
from lakesync.adapters.object_store import LakeAdapter
from lakesync.flush.queue import FlushContext, Job, TableWork, jobs_of
from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.wire.json import encode_json

JOBS_PREFIX = "materialise-jobs"
FAILED_PREFIX = "materialise-failed"
UNREADABLE_PREFIX = "materialise-unreadable"

log = structlog.get_logger("flush")

_decode = msgspec.json.Decoder(Job, strict=False).decode


class ObjectFlushQueue:
    """`FlushQueue` in an object store."""

    def __init__(self, objects: LakeAdapter) -> None:
        self._objects = objects

    def publish(self, work: Sequence[TableWork], context: FlushContext) -> None:
        """Add a flush's work: objects named by batch and table, written once."""
        for job in jobs_of(work, context):
            self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(job), if_absent=True)

    def pending(self, gateway_id: str, limit: int = 100) -> list[Job]:
        """Jobs of a gateway, oldest flush first."""
        return list(self._read(f"{JOBS_PREFIX}/{gateway_id}/", limit))

    def begin(self, job: Job) -> Job:
        """Count an attempt."""
        begun = msgspec.structs.replace(job, attempts=job.attempts + 1)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(begun))
        return begun

    def done(self, job: Job) -> None:
        """Take a job out."""
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def set_aside(self, job: Job, failure: str) -> None:
        """Take a job out of the way; killed in between, it is in both places, and worked off once more."""
        aside = msgspec.structs.replace(job, failure=failure)
        self._objects.put_object(_key(FAILED_PREFIX, job), encode_json(aside))
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def gateways(self) -> list[str]:
        """Return the gateways of which jobs wait."""
        found: list[str] = []
        while page := self._objects.list_objects(f"{JOBS_PREFIX}/", after=_behind(found), limit=1).objects:
            found.append(page[0].key.split("/")[1])
        return found

    def failed(self, gateway_id: str) -> list[Job]:
        """Jobs that were set aside."""
        return list(self._read(f"{FAILED_PREFIX}/{gateway_id}/", None))

    def retry(self, job: Job) -> None:
        """Put a job back."""
        key = _key(FAILED_PREFIX, job)
        found = self._job(key)
        if found is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        fresh = msgspec.structs.replace(found, attempts=0, failure=None)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(fresh))
        self._objects.delete_object(key)

    def drop(self, job: Job) -> None:
        """Forget a job."""
        key = _key(FAILED_PREFIX, job)
        if self._job(key) is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        self._objects.delete_object(key)

    def _read(self, prefix: str, limit: int | None) -> Iterator[Job]:
        after, more, left = "", True, limit
        while more and left != 0:
            page = self._objects.list_objects(prefix, after=after, limit=min(left or 1000, 1000))
            for info in page.objects:
                after = info.key
                job = self._job(info.key)
                if job is None:
                    continue
                yield job
                left = left - 1 if left is not None else None
            more = page.more

    def _job(self, key: str) -> Job | None:
        """The job in an object; None where another worker was quicker, or where it is none and was put away."""
        try:
            data = self._objects.get_object(key)
        except NotFoundError:
            return None
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            away = f"{UNREADABLE_PREFIX}/{key}"
            log.error("an object in the queue is no job", object=key, moved_to=away, reason=str(error))  # noqa: TRY400
            self._objects.put_object(away, data)
            self._objects.delete_object(key)
            return None


def opened_objects(uri: str, opening: ExitStack) -> LakeAdapter:
    """Open the object store of a queue.

    Args:
        uri: of an adapter.
        opening: closes it at its end.

    Raises:
        ConfigurationError: the URI names no object store.
        AdapterError: it cannot be opened.
    """
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    if not is_object_store(adapter):
        raise ConfigurationError("flush.queue must name an object store: file:///ABSOLUTE/FOLDER or s3://BUCKET/PREFIX")
    return adapter


def _key(prefix: str, job: Job) -> str:
    return f"{prefix}/{job.context.gateway_id}/{quote(job.job_id, safe='')}.json"


def _behind(gateways: Sequence[str]) -> str:
    """A key behind every job of the last gateway."""
    return f"{JOBS_PREFIX}/{gateways[-1]}/\U0010ffff" if gateways else ""
