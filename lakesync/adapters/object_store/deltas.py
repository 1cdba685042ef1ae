"""`ObjectDeltas`: deltas in an object store, one immutable object per batch.

The key of an object contains its gateway, day and value ranges (`delta_files.py`), so that a query skips objects by
name. Objects are rewritten only by an erasure, so any other tool may read them. Objects with other names are ignored.

A delta that is in two batches is stored twice. In the order of arrivals (the gateway's timestamps of receipt) it is
also returned twice; the merge of its row is not affected. Reading rows by id reads every object of the gateway. An
object store has no destination tables, which have current rows beside the deltas. `registry.as_database` wraps object
stores in this class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from lakesync.adapters.arrow import (
    encode_parquet,
    from_arrow,
    parquet_checksum,
    require_pyarrow,
    table_checksum,
    to_arrow,
)
from lakesync.adapters.base import UNCHANGED, ContentTransform
from lakesync.adapters.batch_scan import (
    BatchCache,
    Segment,
    last_position,
    read_page,
    select_matching,
    sort_unique,
    split_points,
)
from lakesync.adapters.deltas import (
    BUCKETS,
    ArrowPage,
    BatchChecksum,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    MarkUpdate,
    checksum_of,
    states_of,
)
from lakesync.adapters.digests import Digest, DigestScope, day_of, digest_deltas, merge_digests
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
    value_range,
)
from lakesync.adapters.redaction import RedactionRequest, RedactionResult, TouchedRow, redact_table
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import IntegrityError, NotFoundError, ValidationError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema
from lakesync.model.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES_PER_DELTA = 100
"""An estimate, to derive the number of an object's deltas from its size."""


class ObjectDeltas:
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
        self._cache = BatchCache()

    def insert_deltas(self, batch: DeltaBatch) -> BatchChecksum:
        """Write a batch as one object, and read it back."""
        if self._format == "parquet":
            return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))
        arrivals = [stored.arrival for stored in batch.deltas]
        hlcs = [stored.delta.hlc for stored in batch.deltas]
        file = self._delta_file(batch.batch_id, batch.gateway, (min(arrivals), max(arrivals)), (min(hlcs), max(hlcs)))
        return self._put(file, encode_envelope(batch.gateway, batch.deltas, hlc.wall_clock()))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> BatchChecksum:
        """Like `insert_deltas`, from an Arrow table."""
        if self._format == "json":
            return self.insert_deltas(DeltaBatch(batch_id, gateway, tuple(from_arrow(deltas))))
        file = self._delta_file(batch_id, gateway, value_range(deltas, "arrival"), value_range(deltas, "hlc"))
        return self._put(file, encode_parquet(deltas, {"lakesync.batch_id": batch_id}))

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """Return a page, reading only objects that may contain matching deltas."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """Like `query_deltas_since`, as an Arrow table."""
        return read_page(self._segments(query), self._read, query)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """Return split points of a query, estimated from the objects' keys and sizes."""
        segments = ((segment, 1 + segment.source.size // _BYTES_PER_DELTA) for segment in self._segments(query))
        return split_points(segments, query, size)

    @property
    def max_writers(self) -> int:
        """As many as a load has parts: each batch is an object of its own, so writers do not wait for each other."""
        return BUCKETS

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """Return the merged state of each row."""
        query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids))
        if not row_ids:
            return {}
        batches = (select_matching(self._read(segment.source), query) for segment in self._segments(query))
        return states_of(stored.delta for batch in batches for stored in from_arrow(batch))

    def newest_position(self, gateway: str | None = None) -> Position | None:
        """Return the last delta's position in arrival order, reading only the objects with the greatest arrival."""
        segments = list(self._segments(DeltaQuery(gateway=gateway)))
        latest = max((segment.high for segment in segments), default=0)
        batches = [self._read(segment.source) for segment in segments if segment.high == latest]
        return max((last_position(sort_unique(batch, "arrival"), "arrival") for batch in batches), default=None)

    def read_mark(self, name: str) -> str | None:
        """Return the value of the mark of a follower (a process that copies the lake's deltas), which is an object."""
        return read_mark_object(self.objects, name)

    def move_mark(self, mark: MarkUpdate) -> None:
        """Update a follower's mark without writing deltas."""
        mark.check(self.read_mark(mark.name))
        write_mark_object(self.objects, mark)

    def apply_arrow(
        self,
        batch_id: str,
        deltas: pa.Table,
        mark: MarkUpdate,
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 there are no destination tables
        transform: ContentTransform = UNCHANGED,  # noqa: ARG002
    ) -> BatchChecksum:
        """Write one object for each gateway and table, then the mark.

        So a follower that later selects more tables can repeat a batch: it keeps the existing objects and adds those of
        the new tables.
        """
        # There are no transactions. An object is named by its batch and written once (`If-None-Match`). So a repeat
        # after a crash keeps the objects that were written before the mark.
        mark.check(self.read_mark(mark.name))
        count, total = 0, 0
        for gateway, table, of_table in _by_table(deltas):
            stored = self.insert_arrow(f"{batch_id}.{table}", gateway, of_table)
            count, total = count + stored.deltas, total + stored.id_sum
        crash_point("objects.before_mark")
        write_mark_object(self.objects, mark)
        return BatchChecksum(count, total % 2**64)

    def redact(
        self,
        requests: Sequence[RedactionRequest],
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 there are no destination tables
        transform: ContentTransform = UNCHANGED,  # noqa: ARG002
        also: Collection[TouchedRow] = (),  # noqa: ARG002
    ) -> RedactionResult:
        """Rewrite the objects that contain covered deltas, one after another."""
        files = {file.key: file for file in map(self._parse_info, self._list(f"{DELTAS_PREFIX}/")) if file is not None}
        keys = [
            key
            for key, file in files.items()
            if any(file.gateway == request.gateway and file.hlcs[0] <= request.hlc for request in requests)
        ]
        return redact_objects(
            self.objects, keys, lambda key, data: decode_file(data, files[key]), reencode_file, requests
        )

    def restore_arrow(
        self,
        follower: str,  # noqa: ARG002 there are no destination tables
        batch_id: str,
        deltas: pa.Table,
        scope: DigestScope,  # noqa: ARG002
        transform: ContentTransform = UNCHANGED,  # noqa: ARG002
    ) -> None:
        """Rewrite a batch's objects under their keys."""
        for gateway, table, of_table in _by_table(deltas):
            file = self._delta_file(
                f"{batch_id}.{table}", gateway, value_range(of_table, "arrival"), value_range(of_table, "hlc")
            )
            if self._format == "json":
                data = encode_envelope(gateway, from_arrow(of_table), hlc.wall_clock())
            else:
                data = encode_parquet(of_table, {"lakesync.batch_id": f"{batch_id}.{table}"})
            self.objects.put_object(file.key, data)

    def remove_surplus(
        self, follower: str, deltas: pa.Table, scope: DigestScope, transform: ContentTransform = UNCHANGED
    ) -> None:
        """Do nothing: the surplus deltas may be another writer's, whose objects are left alone."""

    def remove_orphan_rows(self, scope: DigestScope) -> int:  # noqa: ARG002 there are no destination tables
        """Do nothing: there are no destination tables."""
        return 0

    def digests(self, scope: DigestScope) -> list[Digest]:
        """Return the digest (count and checksum) of each table and day, reading only objects that overlap the scope."""
        found: list[Digest] = []
        for info in self._list(f"{DELTAS_PREFIX}/"):
            file = self._parse_info(info)
            if file is not None and (not scope.gateways or file.gateway in scope.gateways):
                first, last = map(day_of, file.arrivals)
                if not scope.days or any(first <= day <= last for day in scope.days):
                    found += digest_deltas(self._read(file), scope)
        return list(merge_digests(found).values())

    def close(self) -> None:
        """Close the object store."""
        self.objects.close()

    def _delta_file(self, batch_id: str, gateway: str, arrivals: tuple[int, int], hlcs: tuple[int, int]) -> DeltaFile:
        """Return the file for a batch. Its key has the bounds of arrivals and HLCs, so that queries can skip files."""
        day = datetime.fromtimestamp(hlc.decode(arrivals[0])[0] / 1000, UTC).strftime("%Y-%m-%d")
        spans = "-".join(f"{value:016x}" for value in (*arrivals, *hlcs))
        name = quote(batch_id.removeprefix(f"{gateway}."), safe="")
        ending = "parquet" if self._format == "parquet" else "json"
        key = f"{DELTAS_PREFIX}/{gateway}/{day}/{spans}.{name}.{ending}"
        file = parse_key(key)
        if file is None:
            raise ValidationError(f"{gateway!r} cannot be a gateway id in an object's key {key!r}")
        return file

    def _put(self, file: DeltaFile, data: bytes) -> BatchChecksum:
        """Write an object unless it exists, and read it back."""
        self.objects.put_object(file.key, data, if_absent=True)
        content = self.objects.get_object(file.key)
        return (
            parquet_checksum(content) if file.key.endswith(".parquet") else checksum_of(envelope_deltas(content, file))
        )

    def _segments(self, query: DeltaQuery) -> Iterator[Segment[DeltaFile]]:
        """Yield the objects that may contain deltas that match a query."""
        for info in self._list(f"{DELTAS_PREFIX}/{query.gateway}/" if query.gateway else f"{DELTAS_PREFIX}/"):
            file = self._parse_info(info)
            if file is None:
                continue
            segment = Segment(file, *file.span(query.order))
            if segment.overlaps(query):
                yield segment

    def _parse_info(self, info: ObjectInfo) -> DeltaFile | None:
        """Parse a listed object's key; None if it is not a file of deltas."""
        file = parse_key(info.key)
        return None if file is None else file._replace(etag=info.etag, size=info.size)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects whose key begins with a prefix, in order of key."""
        after, has_more = "", True
        while has_more:
            page = self.objects.list_objects(prefix, after=after)
            yield from page.objects
            after = page.objects[-1].key if page.objects else after
            has_more = page.has_more

    def _read(self, file: DeltaFile) -> pa.Table:
        """Return an object's deltas, from the cache if the object is unchanged."""
        key = f"{file.key} {file.etag}"
        return self._cache.get(key, lambda _: decode_file(self.objects.get_object(file.key), file))


def _by_table(deltas: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    """Yield the deltas of each gateway and table."""
    import pyarrow.compute as pc

    groups = deltas.group_by(["gateway", "table_name"]).aggregate([])
    names = (groups.column(name).to_pylist() for name in ("gateway", "table_name"))
    for gateway, table in zip(*names, strict=True):
        is_in_table = pc.and_(pc.equal(deltas.column("gateway"), gateway), pc.equal(deltas.column("table_name"), table))
        yield gateway, table, deltas.filter(is_in_table)


_MARKS_PREFIX = "marks"


def read_mark_object(objects: LakeAdapter, name: str) -> str | None:
    """Return the value of a mark; None if it was never written."""
    try:
        return objects.get_object(_mark_key(name)).decode()
    except NotFoundError:
        return None


def write_mark_object(objects: LakeAdapter, mark: MarkUpdate) -> None:
    """Write a mark.

    Args:
        objects: the object store.
        mark: the update.
    """
    objects.put_object(_mark_key(mark.name), mark.value.encode())


def _mark_key(name: str) -> str:
    return f"{_MARKS_PREFIX}/{quote(name, safe='')}"


def redact_objects(
    objects: LakeAdapter,
    keys: Iterable[str],
    decode: Callable[[str, bytes], pa.Table],
    encode: Callable[[bytes, pa.Table], bytes],
    requests: Sequence[RedactionRequest],
) -> RedactionResult:
    """Rewrite the objects that contain deltas that a request covers, without their content.

    Args:
        objects: the object store.
        keys: the keys of the objects that may contain covered deltas.
        decode: decodes deltas from `(key, content)`.
        encode: encodes deltas from `(old content, deltas)`, in the old content's format.
        requests: what to erase.

    Raises:
        IntegrityError: an object reads back differently from what was written.
        AdapterError: the store cannot be reached; retry.
    """
    count = 0
    touched: dict[TouchedRow, None] = {}
    for key in keys:
        data = objects.get_object(key)
        deltas, result = redact_table(decode(key, data), requests)
        touched |= dict.fromkeys(result.touched)
        if not result.deltas:
            continue
        objects.put_object(key, encode(data, deltas))
        stored, remaining = redact_table(decode(key, objects.get_object(key)), requests)
        if remaining.deltas or table_checksum(stored) != table_checksum(deltas):
            raise IntegrityError(
                f"object {key!r} was rewritten, but {remaining.deltas} of its {len(stored)} deltas still have erased "
                "content: another writer may have replaced it. Repeat the erasure."
            )
        count += result.deltas
        crash_point("objects.redacted")
    return RedactionResult(count, touched=tuple(touched))
