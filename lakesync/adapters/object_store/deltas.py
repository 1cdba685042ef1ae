"""`ObjectDeltas`: deltas (changes of rows) in an object store. A *batch*, deltas written together, is one object.

`registry.as_database` wraps object stores in this class, so that they are used like databases. The key of an object
contains its gateway (an app's stream of changes), its day and its ranges of timestamps (`delta_files.py`), so that a
query skips objects by name. An object is changed only by an erasure, and by a restore, which writes it again. Other
tools may read the objects. Objects with other names are ignored.

A delta that is in two batches is stored twice, so copies write only those that are `missing`. The merge of its row is
not affected. Reading rows by id reads every object of the gateway. An object store has no *destination tables*, which
databases keep beside the deltas for the current rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakesync.adapters.arrow import (
    ValueRange,
    encode_parquet,
    from_arrow,
    parquet_checksum,
    require_pyarrow,
    split_by_table,
    table_checksum,
    value_range,
)
from lakesync.adapters.base import ContentTransform, unchanged
from lakesync.adapters.deltas import HASH_SLOTS, BatchChecksum, DeltaBatch, DeltaQuery, MarkUpdate, checksum_of
from lakesync.adapters.digests import (
    ARRIVALS_PER_DAY,
    Digest,
    DigestScope,
    day_of,
    day_text,
    digest_deltas,
    merge_digests,
)
from lakesync.adapters.file_scan import FileAdapter, FileCache, Segment
from lakesync.adapters.object_store.base import LakeAdapter, ObjectInfo
from lakesync.adapters.object_store.delta_files import (
    DELTAS_PREFIX,
    DeltaFile,
    FlushFormat,
    decode_file,
    encode_envelope,
    envelope_deltas,
    parse_key,
    reencode_file,
)
from lakesync.adapters.redaction import RedactionRequest, RedactionResult, TouchedRow, read_fence, redact_table
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError, NotFoundError, ValidationError
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_NAME_CHARS = 179
"""Characters of the batch id in a key, at most. With the ranges and the ending, they fit a part of a key."""
_MARKS_PREFIX = "marks"
"""The prefix of the keys of marks."""
_BYTES_PER_DELTA = 100
"""An estimate, to derive the number of an object's deltas from its size."""


class ObjectDeltas(FileAdapter[DeltaFile]):
    """`DatabaseAdapter` and `MarkStore` over a `LakeAdapter`; it has no destination tables."""

    def __init__(self, objects: LakeAdapter, flush_format: FlushFormat = "parquet") -> None:
        """Wrap an object store.

        Args:
            objects: the object store.
            flush_format: how new objects are encoded. Objects in either format can be read.

        Raises:
            ConfigurationError: the format is Parquet and pyarrow is not installed.
        """
        if flush_format == "parquet":
            require_pyarrow()
        self.objects = objects
        self._format = flush_format
        self._cache = FileCache()
        self._fence: MarkUpdate | None = None

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Write a batch as one object, and read it back. A JSON object needs no pyarrow."""
        if self._format == "parquet":
            return super().insert_deltas(batch)
        arrivals = [stored.arrival for stored in batch.deltas]
        hlcs = [stored.delta.hlc for stored in batch.deltas]
        ranges = (ValueRange(min(values), max(values)) for values in (arrivals, hlcs))
        file = self._delta_file(batch.batch_id, batch.gateway, *ranges)
        return self._insert([(file, encode_envelope(batch.gateway, batch.deltas, hlc.wall_clock()))], self._fence)

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Write a batch as one object, and read it back."""
        return self._insert([self._encode(batch_id, gateway, deltas)], self._fence)

    def missing(self, deltas: pa.Table) -> pa.Table:
        """Return the deltas that no object contains."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(deltas):
            return deltas
        first_arrival, _ = value_range(deltas, "arrival")
        low, high = value_range(deltas, "hlc")
        stored = [
            _identities(self._read(file))
            for gateway in deltas.column("gateway").unique().to_pylist()
            for file in self._files(gateway)
            # no upper bound of arrivals: in a JSON object all deltas have the last one
            if file.arrivals.high >= first_arrival and file.hlcs.low <= high and file.hlcs.high >= low
        ]
        known = pa.concat_arrays([pa.array([], pa.string()), *stored])
        return deltas.filter(pc.invert(pc.is_in(_identities(deltas), value_set=known)))

    @property
    def max_writers(self) -> int:
        """The most that can share a backlog. Each batch is an object of its own, so writers do not wait."""
        return HASH_SLOTS

    def read_mark(self, name: str) -> str | None:
        """Return the value of a follower's mark, which is an object. A *follower* copies the lake's deltas here."""
        try:
            return self.objects.get_object(_mark_key(name)).decode()
        except NotFoundError:
            return None

    def move_mark(self, mark: MarkUpdate) -> None:
        """Update a follower's mark without writing deltas. The check cannot stop a run that updates it meanwhile."""
        mark.check(self.read_mark(mark.name))
        self.objects.put_object(_mark_key(mark.name), mark.value.encode())

    def apply_arrow(
        self,
        batch_id: str,
        deltas: pa.Table,
        mark: MarkUpdate,
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 there are no destination tables
        transform: ContentTransform = unchanged,  # noqa: ARG002
    ) -> BatchChecksum:
        """Write one object for each gateway and table, with JSON for each of its days too, then the mark.

        So a follower that later selects more tables can repeat a batch: it keeps the existing objects and adds those of
        the new tables.
        """
        # There are no transactions. An object is named by its batch and written once (`If-None-Match`). So a repeat
        # after a crash keeps the objects that were written before the mark.
        files = (
            self._encode(f"{batch_id}.{table}", gateway, part)
            for gateway, table, of_table in split_by_table(deltas)
            for part in self._parts(of_table)
        )
        total = self._insert(files, mark)
        crash_point("objects.before_mark")  # tests kill the process here
        self.objects.put_object(_mark_key(mark.name), mark.value.encode())
        return total

    def fence_writes(self, name: str) -> None:
        """Make later inserts and repairs fail once an erasure has begun.

        A repair checks this before each object, so the object that is being sent then is still written.
        """
        self._fence = read_fence(self, name)

    def redact(
        self,
        requests: Sequence[RedactionRequest],
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 there are no destination tables
        transform: ContentTransform = unchanged,  # noqa: ARG002
        also: Collection[TouchedRow] = (),  # noqa: ARG002
    ) -> RedactionResult:
        """Rewrite the objects with deltas that an erasure covers, one after another, and read each back."""
        count = 0
        touched: dict[TouchedRow, None] = {}
        self._revoke_marks()
        for file in self._files():
            if not any(file.gateway == request.gateway and file.hlcs.low <= request.hlc for request in requests):
                continue
            data = self.objects.get_object(file.key)
            deltas, result = redact_table(decode_file(data, file), requests)
            touched |= dict.fromkeys(result.touched)
            if not result.deltas:
                continue
            self.objects.put_object(file.key, reencode_file(data, deltas))
            stored, remaining = redact_table(decode_file(self.objects.get_object(file.key), file), requests)
            if remaining.deltas or table_checksum(stored) != table_checksum(deltas):
                raise IntegrityError(
                    f"object {file.key!r} was rewritten, but {remaining.deltas} of its {len(stored)} deltas still have "
                    "erased content: another writer may have replaced it. Repeat the erasure."
                )
            count += result.deltas
            crash_point("objects.redacted")
        return RedactionResult(count, touched=tuple(touched))

    def restore_arrow(
        self,
        follower: str,  # noqa: ARG002 there are no destination tables
        batch_id: str,
        deltas: pa.Table,
        scope: DigestScope,  # noqa: ARG002
        transform: ContentTransform = unchanged,  # noqa: ARG002
    ) -> None:
        """Rewrite a batch's objects under their keys.

        A follower that stopped within a batch, at the end of a day, has written it as two objects, and an earlier
        version has written one JSON object for two days. The rewritten objects replace them.
        """
        for gateway, table, of_table in split_by_table(deltas):
            files = set[DeltaFile]()
            for part in self._parts(of_table):
                file, data = self._encode(f"{batch_id}.{table}", gateway, part)
                if self._fence is not None:
                    self._fence.check(self.read_mark(self._fence.name))
                self.objects.put_object(file.key, data)
                files.add(file)
            keys, names = {file.key for file in files}, {_name_of(file.key) for file in files}
            first, last = value_range(of_table, "arrival")
            days = range(day_of(first), day_of(last) + 1)
            replaced = [
                other.key
                for day in days
                if len(days) > 1  # otherwise no day ended within the batch: its objects are not listed
                for other in self._files(f"{gateway}/{day_text(day)}")
                if _name_of(other.key) in names and other.key not in keys
                if first <= other.arrivals.low and other.arrivals.high <= last
            ]
            self.objects.delete_objects(replaced)

    def remove_surplus(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform = unchanged
    ) -> None:
        """Do nothing: the surplus deltas may be another writer's, whose objects are left alone."""

    def remove_orphan_rows(self, scope: DigestScope) -> int:  # noqa: ARG002 there are no destination tables
        """Do nothing: there are no destination tables."""
        return 0

    def digests(self, scope: DigestScope) -> list[Digest]:
        """Return the digest (count and checksum) of each table and day, reading only objects that overlap the scope."""
        found: list[Digest] = []
        for file in self._files():
            if scope.has_gateway(file.gateway):
                first, last = map(day_of, file.arrivals)
                if not scope.days or any(first <= day <= last for day in scope.days):
                    found += digest_deltas(self._read(file), scope)
        return list(merge_digests(found).values())

    def close(self) -> None:
        """Close the object store."""
        self.objects.close()

    def _parts(self, deltas: pa.Table) -> list[pa.Table]:
        """Divide deltas of one gateway and table into those of each object.

        All deltas of a JSON object have its last arrival, so it must not have deltas of two days: each day is compared
        with the lake.
        """
        import pyarrow.compute as pc

        if self._format == "parquet":
            return [deltas]
        days = pc.divide(deltas.column("arrival"), ARRIVALS_PER_DAY)
        return [deltas.filter(pc.equal(days, day)) for day in pc.unique(days)]

    def _delta_file(self, batch_id: str, gateway: str, arrivals: ValueRange, hlcs: ValueRange) -> DeltaFile:
        """Return the file for a batch. Its key has the bounds of arrivals and HLCs, so that queries can skip files."""
        day = day_text(day_of(arrivals.low))
        spans = "-".join(f"{value:016x}" for value in (*arrivals, *hlcs))
        name = quote(batch_id.removeprefix(f"{gateway}."), safe="")
        if len(name) > _MAX_NAME_CHARS:  # of a flow with a long name
            name = hashlib.sha256(batch_id.encode()).hexdigest()
        ending = "parquet" if self._format == "parquet" else "json"
        key = f"{DELTAS_PREFIX}/{gateway}/{day}/{spans}.{name}.{ending}"
        file = parse_key(key)
        if file is None:
            raise ValidationError(f"{gateway!r} cannot be a gateway id in an object's key {key!r}")
        return file

    def _encode(self, batch_id: str, gateway: str, deltas: pa.Table) -> tuple[DeltaFile, bytes]:
        """Return the file for a batch, and its content."""
        file = self._delta_file(batch_id, gateway, value_range(deltas, "arrival"), value_range(deltas, "hlc"))
        if self._format == "json":
            return file, encode_envelope(gateway, from_arrow(deltas), hlc.wall_clock())
        return file, encode_parquet(deltas, {"lakesync.batch_id": batch_id})

    def _insert(self, files: Iterable[tuple[DeltaFile, bytes]], mark: MarkUpdate | None) -> BatchChecksum:
        """Write objects unless they exist, read them back, and check before and after that a mark is unchanged.

        An erasure that revokes the mark meanwhile may have listed the objects before, so the new ones are deleted.
        """
        if mark is not None:
            mark.check(self.read_mark(mark.name))
        total, created = BatchChecksum(), list[str]()
        for file, data in files:
            if self.objects.put_object(file.key, data, if_absent=True):
                created.append(file.key)
            content = self.objects.get_object(file.key)
            total = total.plus(
                parquet_checksum(content)
                if file.key.endswith(".parquet")
                else checksum_of(envelope_deltas(content, file))
            )
        if mark is not None and (found := self.read_mark(mark.name)) not in (mark.expected, mark.value):
            if found is not None and found.lstrip() == (mark.expected or "").lstrip():  # revoked; not moved by a run
                self.objects.delete_objects(created)
            raise mark.moved_error(found)
        return total

    def _revoke_marks(self) -> None:
        """Change the text of every mark, as `sql.follower_state.revoke_marks` does; JSON ignores the blank.

        A task of a killed run may go on, with deltas that it read before an erasure. Its inserts then fail.
        """
        for mark in self._objects(f"{_MARKS_PREFIX}/"):
            text = self.objects.get_object(mark.key)
            if b"{" in text:
                self.objects.put_object(mark.key, b" " + text)

    def _segments(self, query: DeltaQuery) -> Iterator[Segment[DeltaFile]]:
        """Yield the objects that may contain deltas that match a query, each with its range of values (a segment)."""
        for file in self._files(query.gateway):
            segment = Segment(file, *file.span(query.order), 1 + file.size // _BYTES_PER_DELTA)
            if segment.overlaps(query):
                yield segment

    def _files(self, folder: str | None = None) -> Iterator[DeltaFile]:
        """Yield objects with deltas, in order of key: all, or those of a gateway (`GATEWAY`) or day (`GATEWAY/DAY`)."""
        for info in self._objects(f"{DELTAS_PREFIX}/{folder}/" if folder else f"{DELTAS_PREFIX}/"):
            file = parse_key(info.key)
            if file is not None:
                yield file._replace(etag=info.etag, size=info.size)

    def _objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with a prefix, in order of key."""
        after, has_more = "", True
        while has_more:
            page = self.objects.list_objects(prefix, after=after)
            yield from page.objects
            after = page.objects[-1].key if page.objects else after
            has_more = page.has_more

    def _read(self, file: DeltaFile) -> pa.Table:
        """Return an object's deltas, from the cache if the object is unchanged."""
        key = f"{file.key} {file.etag}"
        return self._cache.get(key, lambda: decode_file(self.objects.get_object(file.key), file))


def _name_of(key: str) -> str:
    """Return the part of a file's key that has the batch id, without the ranges before it."""
    return key.rpartition("/")[2].partition(".")[2]


def _identities(deltas: pa.Table) -> pa.Array:
    """Return what identifies each delta (`StoredDelta.identity`) as one text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = (deltas.column(name).cast(pa.string()) for name in ("hlc", "client_id", "delta_id", "gateway"))
    return pc.binary_join_element_wise(*columns, "\0").combine_chunks()


def _mark_key(name: str) -> str:
    return f"{_MARKS_PREFIX}/{quote(name, safe='')}"
