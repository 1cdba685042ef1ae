"""`ObjectFlushQueue`: a flush queue in an object store, whose jobs any process can run (`[flush] queue`).

A job says which rows of a destination table to update after a flush. Gateways write jobs, and `lakesync materialise`
runs them. A pending job is the object `materialise-jobs/GATEWAY/JOB.json`, a job that was set aside after several
failures `materialise-failed/GATEWAY/JOB.json`. Objects that cannot be decoded are moved to `materialise-unreadable/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from urllib.parse import quote

import msgspec
import structlog

from lakesync.adapters import open_adapter
from lakesync.adapters.object_store.base import LakeAdapter
from lakesync.adapters.registry import is_object_store
from lakesync.flush.queue import FlushContext, Job, TableWork, jobs_of
from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.wire.json import encode_json

JOBS_PREFIX = "materialise-jobs"
FAILED_PREFIX = "materialise-failed"
UNREADABLE_PREFIX = "materialise-unreadable"

log = structlog.get_logger("flush")

_decode = msgspec.json.Decoder(Job, strict=False).decode  # not strict: large integers are decimal strings


class ObjectFlushQueue:
    """`FlushQueue` in an object store."""

    def __init__(self, objects: LakeAdapter) -> None:
        """Wrap an object store.

        Args:
            objects: stores the jobs; may store other objects too.
        """
        self._objects = objects

    def publish(self, work: Sequence[TableWork], context: FlushContext) -> None:
        """Add jobs as objects that are named by batch and table; existing objects are left unchanged."""
        for job in jobs_of(work, context):
            self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(job), if_absent=True)

    def pending(self, gateway_id: str, limit: int = 100) -> list[Job]:
        """Return a gateway's pending jobs, oldest flush first."""
        return list(self._read(f"{JOBS_PREFIX}/{gateway_id}/", limit))

    def begin(self, job: Job) -> Job:
        """Count an attempt."""
        counted = msgspec.structs.replace(job, attempts=job.attempts + 1)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(counted))
        return counted

    def done(self, job: Job) -> None:
        """Remove a job."""
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def set_aside(self, job: Job, failure: str) -> None:
        """Set a job aside: write it as failed, then delete the pending job. After a crash in between, it runs again."""
        failed = msgspec.structs.replace(job, failure=failure)
        self._objects.put_object(_key(FAILED_PREFIX, job), encode_json(failed))
        self._objects.delete_object(_key(JOBS_PREFIX, job))

    def gateways(self) -> list[str]:
        """Return the gateways with pending jobs. It lists one object for each of them."""
        found: list[str] = []
        while page := self._objects.list_objects(f"{JOBS_PREFIX}/", after=_key_after(found), limit=1).objects:
            found.append(page[0].key.split("/")[1])
        return found

    def failed(self, gateway_id: str) -> list[Job]:
        """Return the jobs that were set aside."""
        return list(self._read(f"{FAILED_PREFIX}/{gateway_id}/", None))

    def retry(self, job: Job) -> None:
        """Put a job that was set aside back into the queue.

        Raises:
            NotFoundError: the job was not set aside.
        """
        key = _key(FAILED_PREFIX, job)
        found = self._job(key)
        if found is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        reset = msgspec.structs.replace(found, attempts=0, failure=None)
        self._objects.put_object(_key(JOBS_PREFIX, job), encode_json(reset))
        self._objects.delete_object(key)

    def drop(self, job: Job) -> None:
        """Delete a job that was set aside.

        Raises:
            NotFoundError: the job was not set aside.
        """
        key = _key(FAILED_PREFIX, job)
        if self._job(key) is None:
            raise NotFoundError(f"no job {job.job_id!r} was set aside")
        self._objects.delete_object(key)

    def _read(self, prefix: str, limit: int | None) -> Iterator[Job]:
        """Yield the jobs under a prefix, oldest flush first, at most `limit`; None for all."""
        after, more, remaining = "", True, limit
        while more and remaining != 0:
            page = self._objects.list_objects(prefix, after=after, limit=min(remaining or 1000, 1000))
            for info in page.objects:
                after = info.key
                job = self._job(info.key)
                if job is None:
                    continue
                yield job
                remaining = remaining - 1 if remaining is not None else None
            more = page.more

    def _job(self, key: str) -> Job | None:
        """Return the job in an object; None if another worker has removed it, or if it cannot be decoded."""
        try:
            data = self._objects.get_object(key)
        except NotFoundError:
            return None
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            new_key = f"{UNREADABLE_PREFIX}/{key}"
            log.error("an object in the queue is not a job", object=key, moved_to=new_key, reason=str(error))  # noqa: TRY400
            self._objects.put_object(new_key, data)
            self._objects.delete_object(key)
            return None


def open_queue_store(uri: str, opening: ExitStack) -> LakeAdapter:
    """Open the object store of a queue.

    Args:
        uri: the URI of an object store.
        opening: an exit stack that closes the store.

    Raises:
        ConfigurationError: the URI is not an object store's.
        AdapterError: the store cannot be opened.
    """
    adapter = open_adapter(uri)
    opening.callback(adapter.close)
    if not is_object_store(adapter):
        raise ConfigurationError("flush.queue must name an object store: file:///ABSOLUTE/FOLDER or s3://BUCKET/PREFIX")
    return adapter


def _key(prefix: str, job: Job) -> str:
    """Return the key of the object that stores a job."""
    return f"{prefix}/{job.context.gateway_id}/{quote(job.job_id, safe='')}.json"


def _key_after(gateways: Sequence[str]) -> str:
    """Return a key after those of every job of the last gateway: it ends with the greatest character."""
    return f"{JOBS_PREFIX}/{gateways[-1]}/\U0010ffff" if gateways else ""
