"""The flush queue in an object store (`[flush] queue`), whose jobs any process can run with `lakesync materialise`.

A gateway is one app's stream of changes of rows. A flush copies them to a database, batch by batch. A job then updates
a destination table there, which has the current rows of one synced table. A pending job is the object
`materialise-jobs/GATEWAY/JOB.json`. A job that failed for good is set aside, as `materialise-failed/GATEWAY/JOB.json`.
Objects that cannot be decoded are moved to `materialise-unreadable/`. The gateway server and `lakesync materialise`
call `open_object_queue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import quote

import msgspec
import structlog

from lakesync.adapters import open_adapter
from lakesync.adapters.object_store.base import LakeAdapter
from lakesync.adapters.registry import is_object_store
from lakesync.flush.queue import FlushJob, FlushQueue, JobChange, decode_job
from lakesync.model.errors import ConfigurationError, NotFoundError
from lakesync.wire.json import encode_json

_PENDING, _FAILED, _UNREADABLE = "materialise-jobs", "materialise-failed", "materialise-unreadable"
"""First parts of the objects' keys."""
_PAGE_SIZE = 1000
"""Objects that are listed at once, at most."""
_MAX_CHARACTER = "\U0010ffff"
"""Sorts after every character of a key."""

log = structlog.get_logger("flush")


def open_object_queue(uri: str, opening: ExitStack) -> ObjectFlushQueue:
    """Open the queue of `[flush] queue`.

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
    return ObjectFlushQueue(adapter)


class ObjectFlushQueue(FlushQueue):
    """`FlushQueue` in an object store, which has no transactions.

    A change of the queue writes or deletes single objects, so the queue is its own `JobChange`. The store lists objects
    in the order of their keys, which is the order of the flushes: a job's id begins with its batch's last arrival (the
    gateway's timestamp of a push).
    """

    def __init__(self, objects: LakeAdapter) -> None:
        """Wrap an object store.

        Args:
            objects: stores the jobs; may store other objects too.
        """
        self._objects = objects

    def gateways(self) -> list[str]:
        """Return the gateways with pending jobs. It lists one object for each gateway, not all jobs."""
        gateways: list[str] = []
        after = ""
        while page := self._objects.list_objects(f"{_PENDING}/", after=after, limit=1).objects:
            gateways.append(page[0].key.split("/")[1])
            after = f"{_PENDING}/{gateways[-1]}/{_MAX_CHARACTER}"  # after all jobs of this gateway
        return gateways

    def pending(self, gateway_id: str, limit: int = 100) -> list[FlushJob]:
        """Return a gateway's pending jobs, oldest flush first."""
        return list(self._read(f"{_PENDING}/{gateway_id}/", limit))

    def failed(self, gateway_id: str) -> list[FlushJob]:
        """Return the jobs that were set aside, oldest flush first."""
        return list(self._read(f"{_FAILED}/{gateway_id}/", None))

    def _change(self, gateway_id: str, change: Callable[[JobChange], None]) -> None:  # noqa: ARG002 keys name the gateway
        """Call the function with the queue itself; what it did before an error is not undone."""
        change(self)

    # -- the methods of `JobChange` ------------------------------------------------------------------------------

    def add(self, job: FlushJob) -> None:
        """Store a pending job, unless one with its id is stored."""
        self._objects.put_object(_key(job), encode_json(job), if_absent=True)

    def put(self, job: FlushJob, *, set_aside: bool = False) -> None:
        """Store a job, in place of an existing one.

        Args:
            job: the job.
            set_aside: whether it is set aside, instead of pending.
        """
        self._objects.put_object(_key(job, set_aside=set_aside), encode_json(job))

    def remove(self, job: FlushJob, *, set_aside: bool = False) -> None:
        """Delete a job, if it is stored.

        Args:
            job: the job.
            set_aside: whether to delete the one that is set aside, instead of the pending one.
        """
        self._objects.delete_object(_key(job, set_aside=set_aside))

    def find_failed(self, job: FlushJob) -> FlushJob | None:
        """Return a job that was set aside, as it is stored; None if it was not."""
        return self._read_job(_key(job, set_aside=True))

    def _read(self, prefix: str, limit: int | None) -> Iterator[FlushJob]:
        """Yield the jobs under a prefix, oldest flush first, at most `limit`; None for all."""
        after, has_more, remaining = "", True, limit
        while has_more and remaining != 0:
            page = self._objects.list_objects(prefix, after=after, limit=min(remaining or _PAGE_SIZE, _PAGE_SIZE))
            for info in page.objects:
                after = info.key
                job = self._read_job(info.key)
                if job is None:
                    continue
                yield job
                remaining = remaining - 1 if remaining is not None else None
            has_more = page.has_more

    def _read_job(self, key: str) -> FlushJob | None:
        """Return the job in an object; None if another worker has removed it, or if it cannot be decoded."""
        try:
            data = self._objects.get_object(key)
        except NotFoundError:
            return None
        try:
            return decode_job(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            new_key = f"{_UNREADABLE}/{key}"
            log.error("an object in the queue is not a job", object=key, moved_to=new_key, reason=str(error))  # noqa: TRY400
            self._objects.put_object(new_key, data)
            self._objects.delete_object(key)
            return None


def _key(job: FlushJob, *, set_aside: bool = False) -> str:
    """Return the key of the object that stores a pending job, or one that was set aside."""
    prefix = _FAILED if set_aside else _PENDING
    return f"{prefix}/{job.context.gateway_id}/{quote(job.job_id, safe='')}.json"
