"""Deltas in an object store: one object a batch, written once, named so that a reader knows what it may leave out.

`PREFIX/GATEWAY/DAY/ARRIVALS-HLCS.BATCH.parquet`: day of the first arrival (UTC), least and greatest arrival, least and
greatest hlc (16 hex digits each), batch id. Objects are never changed, but by an erasure, so any tool may read along.
Objects with other names are left alone.

A store of batches does not know single deltas: one that comes in two batches is held twice and, in order of arrival,
given twice; merging does not mind. Reading rows by id looks into every object of a gateway.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from lakesync.adapters.arrow import (
    about_parquet,
    decode_parquet,
    encode_parquet,
    from_arrow,
    held_in_parquet,
    require_pyarrow,
    to_arrow,
)
from lakesync.adapters.base import (
    NOTHING_BESIDE,
    ArrowPage,
    Beside,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Mark,
    Order,
    Position,
    StoredDelta,
)
from lakesync.adapters.buckets import BUCKETS
from lakesync.adapters.digests import Digest, Scope, day_of, digests_of, together
from lakesync.adapters.envelope import decode_envelope, encode_envelope
from lakesync.adapters.object_marks import check_mark, read_mark, write_mark
from lakesync.adapters.object_redaction import redact_objects
from lakesync.adapters.object_store import LakeAdapter, ObjectInfo
from lakesync.adapters.pieces import Piece, chosen, in_order, last_position, page_of, split_points
from lakesync.adapters.recent import Recent
from lakesync.adapters.redaction import Redacted, Redaction, TouchedRow
from lakesync.adapters.selection import held, merged
from lakesync.model import hlc
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import ValidationError
from lakesync.model.merge import RowState
from lakesync.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

FlushFormat = Literal["parquet", "json"]
DELTAS_PREFIX = "deltas"
_PARQUET = b"PAR1"
_DELTA_BYTES = 100
"""About as many bytes of an object are one delta."""
_KEY = re.compile(
    r"(?P<gateway>[^/]+)/\d{4}-\d\d-\d\d/(?P<spans>[0-9a-f]{16}(-[0-9a-f]{16}){3})\.[^/]+\.(?P<ending>parquet|json)"
)


class _Named(NamedTuple):
    """An object, as its key tells of it."""

    key: str
    gateway: str
    arrivals: tuple[int, int]
    hlcs: tuple[int, int]
    etag: str = ""
    """Of what was listed: an erasure writes an object anew."""
    size: int = 0
    """Its bytes, as they were listed."""

    def span(self, order: Order) -> tuple[int, int]:
        return self.arrivals if order == "arrival" else self.hlcs


class ObjectDeltas:
    """`DatabaseAdapter` over a `LakeAdapter`."""

    def __init__(
        self, objects: LakeAdapter, flush_format: FlushFormat = "parquet", prefix: str = DELTAS_PREFIX
    ) -> None:
        """Args: flush_format: of new objects; both are read.

        Raises:
            ConfigurationError: Parquet is wanted and pyarrow is not installed.
        """
        if flush_format == "parquet":
            require_pyarrow()
        self.objects = objects
        self._format = flush_format
        self._prefix = prefix
        self._recent = Recent()

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """Keep a batch as one object, and read it back."""
        if self._format == "parquet":
            return self.insert_arrow(batch.batch_id, batch.gateway, to_arrow(batch.deltas))
        arrivals = [stored.arrival for stored in batch.deltas]
        hlcs = [stored.delta.hlc for stored in batch.deltas]
        each = self._named(batch.batch_id, batch.gateway, (min(arrivals), max(arrivals)), (min(hlcs), max(hlcs)))
        return self._put(each, encode_envelope(batch.gateway, batch.deltas, hlc.wall_clock()))

    def insert_arrow(self, batch_id: str, gateway: str, deltas: pa.Table) -> Held:
        """Keep a batch as one object, and read it back."""
        if self._format == "json":
            return self.insert_deltas(DeltaBatch(batch_id, gateway, tuple(from_arrow(deltas))))
        each = self._named(batch_id, gateway, _span(deltas, "arrival"), _span(deltas, "hlc"))
        return self._put(each, encode_parquet(deltas, {"lakesync.batch_id": batch_id}))

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page, from the objects that may hold some of it."""
        page = self.query_arrow(query)
        return DeltaPage(tuple(from_arrow(page.deltas)), page.end)

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """A page, from the objects that may hold some of it."""
        return page_of(self._reaching(query), self._read, query)

    def split_points(self, query: DeltaQuery, size: int) -> list[int]:
        """The values that cut a query's deltas into ranges, by the names and sizes of the objects."""
        pieces = ((piece, 1 + piece.name.size // _DELTA_BYTES) for piece in self._reaching(query))
        return split_points(pieces, query, size)

    @property
    def max_writers(self) -> int:
        """Several: each batch is an object of its own."""
        return BUCKETS

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """The merge of all deltas held of each row."""
        query = DeltaQuery(gateway=gateway, tables=(table,), rows=tuple(row_ids))
        if not row_ids:
            return {}
        found = (chosen(self._read(piece.name), query) for piece in self._reaching(query))
        return merged(stored.delta for some in found for stored in from_arrow(some))

    def newest_position(self) -> Position | None:
        """The place after the last of all deltas, from the objects that reach furthest."""
        pieces = list(self._reaching(DeltaQuery()))
        latest = max((piece.high for piece in pieces), default=0)
        last = [self._read(piece.name) for piece in pieces if piece.high == latest]
        return max((last_position(in_order(some, "arrival"), "arrival") for some in last), default=None)

    def mark(self, name: str) -> str | None:
        """The mark of a follower, an object of its own."""
        return read_mark(self.objects, name)

    def move_mark(self, mark: Mark) -> None:
        """Move a follower's mark."""
        check_mark(self.objects, mark)
        write_mark(self.objects, mark)

    def follow(self, batch: DeltaBatch, mark: Mark, schemas: Sequence[TableSchema] = ()) -> Held:
        """A batch, and the mark after it."""
        return self.follow_arrow(batch.batch_id, to_arrow(batch.deltas), mark, schemas)

    def follow_arrow(
        self,
        batch_id: str,
        deltas: pa.Table,
        mark: Mark,
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 objects keep no tables of rows
        beside: Beside = NOTHING_BESIDE,  # noqa: ARG002
    ) -> Held:
        """Each gateway's deltas of each table as one object, and the mark after them.

        An object does not depend on which tables the follower has chosen, so the same batch under another choice finds
        the objects that are there and adds those of further tables.
        """
        check_mark(self.objects, mark)
        count, total = 0, 0
        for gateway, table, some in _by_table(deltas):
            found = self.insert_arrow(f"{batch_id}.{table}", gateway, some)
            count, total = count + found.deltas, total + found.id_sum
        crash_point("objects.before_mark")
        write_mark(self.objects, mark)
        return Held(count, total % 2**64)

    def redact(
        self,
        requests: Sequence[Redaction],
        schemas: Sequence[TableSchema] = (),  # noqa: ARG002 objects keep no tables of rows
        beside: Beside = NOTHING_BESIDE,  # noqa: ARG002
        also: Collection[TouchedRow] = (),  # noqa: ARG002
    ) -> Redacted:
        """Write the objects anew that hold something, one after another."""
        found = {each.key: each for each in map(self._listed, self._infos(f"{self._prefix}/")) if each is not None}
        keys = [
            key
            for key, each in found.items()
            if any(each.gateway == one.gateway and each.hlcs[0] <= one.hlc for one in requests)
        ]
        return redact_objects(
            self.objects, keys, lambda key, data: _table_of(data, found[key]), _encoded_anew, requests
        )

    def restore_arrow(
        self,
        follower: str,  # noqa: ARG002 objects keep no tables of rows
        batch_id: str,
        deltas: pa.Table,
        scope: Scope,  # noqa: ARG002
        beside: Beside = NOTHING_BESIDE,  # noqa: ARG002
    ) -> None:
        """Write a batch's objects anew, under their keys."""
        for gateway, table, some in _by_table(deltas):
            each = self._named(f"{batch_id}.{table}", gateway, _span(some, "arrival"), _span(some, "hlc"))
            self.objects.put_object(each.key, encode_parquet(some, {"lakesync.batch_id": f"{batch_id}.{table}"}))

    def remove_surplus(self, follower: str, deltas: pa.Table, scope: Scope, beside: Beside = NOTHING_BESIDE) -> None:
        """Nothing: an object may hold what another writer brought."""

    def remove_unknown_rows(self, scope: Scope) -> int:  # noqa: ARG002 objects keep no tables of rows
        """Nothing."""
        return 0

    def digests(self, scope: Scope) -> list[Digest]:
        """Return the figures of each table and day, from the objects that may hold some of it."""
        found: list[Digest] = []
        for info in self._infos(f"{self._prefix}/"):
            each = self._listed(info)
            if each is not None and (not scope.gateways or each.gateway in scope.gateways):
                first, last = map(day_of, each.arrivals)
                if not scope.days or any(first <= day <= last for day in scope.days):
                    found += digests_of(self._read(each), scope)
        return list(together(found).values())

    def close(self) -> None:
        """Release the object store's connections."""
        self.objects.close()

    def _named(self, batch_id: str, gateway: str, arrivals: tuple[int, int], hlcs: tuple[int, int]) -> _Named:
        day = datetime.fromtimestamp(hlc.decode(arrivals[0])[0] / 1000, UTC).strftime("%Y-%m-%d")
        spans = "-".join(f"{value:016x}" for value in (*arrivals, *hlcs))
        name = quote(batch_id.removeprefix(f"{gateway}."), safe="")
        ending = "parquet" if self._format == "parquet" else "json"
        key = f"{self._prefix}/{gateway}/{day}/{spans}.{name}.{ending}"
        each = _parse(key, self._prefix)
        if each is None:
            raise ValidationError(f"{gateway!r} cannot be a gateway id in an object's key {key!r}")
        return each

    def _put(self, each: _Named, data: bytes) -> Held:
        """Write an object, unless it is there, and read it back."""
        self.objects.put_object(each.key, data, if_absent=True)
        back = self.objects.get_object(each.key)
        return held_in_parquet(back) if each.key.endswith(".parquet") else held(_of_envelope(back, each))

    def _reaching(self, query: DeltaQuery) -> Iterator[Piece[_Named]]:
        """The objects that may hold something of what is asked for."""
        for info in self._infos(f"{self._prefix}/{query.gateway}/" if query.gateway else f"{self._prefix}/"):
            each = self._listed(info)
            if each is None:
                continue
            piece = Piece(each, *each.span(query.order))
            if piece.reaches(query):
                yield piece

    def _listed(self, info: ObjectInfo) -> _Named | None:
        each = _parse(info.key, self._prefix)
        return each and each._replace(etag=info.etag, size=info.size)

    def _infos(self, prefix: str) -> Iterator[ObjectInfo]:
        after, more = "", True
        while more:
            page = self.objects.list_objects(prefix, after=after)
            yield from page.objects
            after = page.objects[-1].key if page.objects else after
            more = page.more

    def _read(self, each: _Named) -> pa.Table:
        at = f"{each.key} {each.etag}"
        return self._recent.get(at, lambda _: _table_of(self.objects.get_object(each.key), each))


def _by_table(deltas: pa.Table) -> Iterator[tuple[str, str, pa.Table]]:
    """Deltas by gateway and table."""
    import pyarrow.compute as pc

    groups = deltas.group_by(["gateway", "table_name"]).aggregate([])
    names = (groups.column(name).to_pylist() for name in ("gateway", "table_name"))
    for gateway, table in zip(*names, strict=True):
        mine = pc.and_(pc.equal(deltas.column("gateway"), gateway), pc.equal(deltas.column("table_name"), table))
        yield gateway, table, deltas.filter(mine)


def _span(deltas: pa.Table, name: Order) -> tuple[int, int]:
    import pyarrow.compute as pc

    between = pc.min_max(deltas.column(name)).as_py()
    return between["min"], between["max"]


def _of_envelope(data: bytes, each: _Named) -> list[StoredDelta]:
    """An envelope keeps no arrivals: all of its deltas have the batch's last."""
    envelope = decode_envelope(data)
    return [StoredDelta(envelope.gateway_id, each.arrivals[1], delta) for delta in envelope.deltas]


def _table_of(data: bytes, each: _Named) -> pa.Table:
    return decode_parquet(data) if each.key.endswith(".parquet") else to_arrow(_of_envelope(data, each))


def _encoded_anew(was: bytes, deltas: pa.Table) -> bytes:
    """Other deltas in the form that an object has, with what it says about itself."""
    if was.startswith(_PARQUET):
        return encode_parquet(deltas, about_parquet(was))
    envelope = decode_envelope(was)
    created = datetime.fromisoformat(envelope.created_at)
    return encode_envelope(envelope.gateway_id, from_arrow(deltas), round(created.timestamp() * 1000))


def _parse(key: str, prefix: str) -> _Named | None:
    """What a key says; None where it is not one of ours."""
    found = _KEY.fullmatch(key.removeprefix(f"{prefix}/"))
    if found is None:
        return None
    first, last, low, high = (int(value, 16) for value in found["spans"].split("-"))
    arrivals = (first, last) if found["ending"] == "parquet" else (last, last)
    return _Named(key, found["gateway"], arrivals, (low, high))
