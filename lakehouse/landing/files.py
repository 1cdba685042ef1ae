"""Reads a table's landed rows from their files in tasks, and computes the deltas that the gateway lacks."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.file_systems import data_file_path, on_s3
from lakehouse.landing.landed_files import OLD_MARK, LandedFile
from lakehouse.landing.row_versions import KNOWN, ClaimKeys, Claims, Version, replay_versions
from lakehouse.landing.rows import GONE, PLACE, ROW, WHOLE
from lakesync.connectors.source import changed_columns
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, Op, RowDelta
from lakesync.wire.json import encode_delta

ROWS_AT_ONCE = 10_000
"""Rows of a file that are decoded at once."""

DELTA_SCHEMA = "page bigint, hlc bigint, op string, delta string"

DELTAS = pa.schema([("page", pa.int64()), ("hlc", pa.int64()), ("op", pa.string()), ("delta", pa.string())])

KNOWN_ROWS = pa.schema([("row_id", pa.string()), ("columns", pa.string())])
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LANDED = ["table_name", "kind", "page", "hlc", "row_id", "columns", "name", "value"]


class LandedTable(NamedTuple):
    """The files with a table's landings and known rows, as tasks receive them."""

    table: str
    identity: str | None
    files: tuple[LandedFile, ...]
    known: tuple[tuple[int, str], ...]
    """Buckets and paths of the files of `known`."""
    since: int
    """The page up to which the landings are in `known`."""

    def claim_columns(self) -> tuple[str, ...]:
        """Return the columns by which pages claim rows, the identity column among them."""
        found = {self.identity} if self.identity is not None else set()
        for file in self.files:
            if not file.claims:
                continue
            for rows in _read(file.path, ["table_name", "name"], None):
                mine = rows.filter(pc.equal(rows["table_name"], self.table))
                found |= set(pc.unique(mine["name"].drop_null()).to_pylist())
        return tuple(sorted(found))

    def pages(self, above: int, upto: int, among: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the table's landed rows in a range of pages, unordered.

        Args:
            above: the page after which the range begins.
            upto: the last page of the range.
            among: only rows with these ids; None: all, with claims.
        """
        for file in self.files:
            if file.last <= above or file.first > upto:
                continue
            for rows in _read(file.path, _LANDED, among):
                within = pc.and_(pc.greater(rows["page"], above), pc.less_equal(rows["page"], upto))
                mine = pc.and_(pc.equal(rows["table_name"], self.table), pc.not_equal(rows["kind"], PLACE))
                yield rows.filter(pc.and_(within, mine))

    def known_rows(self, bucket: int | None = None, among: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `known`, in the columns `KNOWN_ROWS`.

        Args:
            bucket: only rows of this bucket; None: of all.
            among: only rows with these ids; None: all.
        """
        for own_bucket, path in self.known:
            if bucket is not None and bucket != own_bucket:
                continue
            for rows in _read(path, KNOWN_ROWS.names, among):
                yield rows.filter(pc.not_equal(rows["row_id"], OLD_MARK))


def _read(path: str, columns: list[str], among: pa.Array | None) -> Iterator[pa.Table]:
    """Yield a file's rows. Of a row group without any of the wanted ids only the ids are read."""
    file_system, file_path = data_file_path(path)
    file = pq.ParquetFile(file_path, filesystem=file_system, pre_buffer=on_s3(path))
    groups = list(range(file.num_row_groups))
    if among is not None:
        ids = (file.read_row_group(group, ["row_id"], use_threads=False)["row_id"] for group in groups)
        groups = [group for group, found in zip(groups, ids, strict=True) if pc.any(pc.is_in(found, among)).as_py()]
    for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False):
        rows = pa.Table.from_batches([batch])
        yield rows if among is None else rows.filter(pc.is_in(rows["row_id"], among))


class PendingPages(NamedTuple):
    """The deltas of some pages, divided among tasks by row."""

    landed: LandedTable
    client_id: str
    above: int
    """Deltas of later pages than this one are computed."""
    upto: int
    parts: int = 1

    def deltas(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the deltas of a part, in the columns `DELTA_SCHEMA`."""
        yield from _PendingRows(self, part).deltas()


class _PendingRows:
    """The rows of one part that pages bring or claim, with all their versions."""

    def __init__(self, pages: PendingPages, part: int) -> None:
        self._pages = pages
        self._landed = pages.landed
        self._part = part
        self._claim_columns = pages.landed.claim_columns()
        self._keys = ClaimKeys(self._claim_columns)
        self._claims = Claims()
        self._versions: dict[str, list[Version]] = {}
        self._gone: dict[str, list[tuple[int, int]]] = {}
        for row in self._read(pages.above, pages.upto):
            self._claim(row)
            if self._is_mine(row):
                self._keep(row)
        self._look_back()

    def deltas(self) -> Iterator[pa.RecordBatch]:
        """Yield the deltas."""
        pages, found = self._pages, list[tuple[str, int, int, str | None, str | None]]()
        keys = self._keys.of if self._claim_columns else _no_keys
        for row_id, versions in self._versions.items():
            if len(versions) > 1:
                versions.sort(key=lambda each: each[:2])
            found += [
                (row_id, event.page, event.hlc, event.columns, event.before)
                for event in replay_versions(versions, self._gone.get(row_id, ()), keys, self._claims)
                if event.page > pages.above and event.columns != event.before
            ]
            if len(found) >= ROWS_AT_ONCE:
                yield delta_batch(found, pages.client_id, self._landed.table)
                found = []
        yield delta_batch(found, pages.client_id, self._landed.table)

    def _look_back(self) -> None:
        """Read the earlier versions of these rows: from `known`, and from earlier pages."""
        landed, above = self._landed, self._pages.above
        wanted = {*self._versions, *self._gone}
        row_ids = pa.array(sorted(wanted), pa.string())
        for rows in landed.known_rows(among=None if self._claim_columns else row_ids):
            for row_id, columns in pairs_of(rows, *KNOWN_ROWS.names):
                if row_id in wanted or self._is_claimed(row_id, columns):
                    wanted.add(row_id)
                    self._versions.setdefault(row_id, []).append(Version(KNOWN, KNOWN, columns))
        if self._claim_columns:
            found = (row for row in self._read(landed.since, above) if row.kind == ROW)
            wanted |= {row.row_id for row in found if self._is_claimed(row.row_id, row.columns)}
        for row in self._read(landed.since, above, None if self._claim_columns else row_ids):
            if row.row_id in wanted:
                self._keep(row)
        if self._claim_columns:
            keys = {key for versions in self._versions.values() for each in versions for key in self._keys.of(each[2])}
            for row in self._read(landed.since, above):
                self._claim(row, keys)

    def _read(self, above: int, upto: int, among: pa.Array | None = None) -> Iterator[LandedRow]:
        for rows in self._landed.pages(above, upto, among):
            yield from map(LandedRow._make, pairs_of(rows, *LandedRow._fields))

    def _keep(self, row: LandedRow) -> None:
        if row.kind == ROW:
            self._versions.setdefault(row.row_id, []).append(Version(row.page, row.hlc, row.columns))
        elif row.kind == GONE:
            self._gone.setdefault(row.row_id, []).append((row.page, row.hlc))

    def _claim(self, row: LandedRow, among: Collection[tuple[str, str]] | None = None) -> None:
        for key in claims_of(row, self._landed.identity, self._keys):
            if among is None or key in among:
                self._claims.add(*key, row.page, row.hlc)

    def _is_claimed(self, row_id: str, columns: str) -> bool:
        mine = self._of_part(row_id)
        return mine and any(key in self._claims for key in self._keys.of(columns))

    def _is_mine(self, row: LandedRow) -> bool:
        return row.kind != WHOLE and self._of_part(row.row_id)

    def _of_part(self, row_id: str) -> bool:
        return self._pages.parts == 1 or zlib.crc32(row_id.encode()) % self._pages.parts == self._part


class LandedRow(NamedTuple):
    """A landed row. Fields that its kind does not have are None."""

    kind: str
    page: int
    hlc: int
    row_id: str
    columns: str
    name: str
    value: str


def claims_of(row: LandedRow, identity: str | None, keys: ClaimKeys) -> Iterator[tuple[str, str]]:
    """Yield the claims that a landed row makes for its page, each a column and a value.

    Args:
        row: the row.
        identity: the column that identifies rows at the source.
        keys: reads the claimed columns of rows.
    """
    if row.kind == WHOLE:
        yield row.name, row.value
    elif row.kind == ROW and identity is not None:
        yield from (key for key in keys.of(row.columns) if key[0] == identity)


def pairs_of(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of columns, row by row."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _no_keys(_: str) -> tuple[tuple[str, str], ...]:
    return ()


def delta_batch(
    events: Iterable[tuple[str, int, int, str | None, str | None]], client_id: str, table: str
) -> pa.RecordBatch:
    """Return events as deltas, in the columns `DELTA_SCHEMA`.

    Args:
        events: `(row id, page, hlc, columns, before)`, columns as JSON.
        client_id: the client id of the deltas.
        table: the deltas' table.
    """
    made: list[tuple[int, int, str, str]] = []
    for row_id, page, hlc, columns, before in events:
        op, values = _change(columns, before)
        if op == "UPDATE" and not values:
            continue
        cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
        identity = delta_id(client_id=client_id, hlc=hlc, table=table, row_id=row_id, columns=cells)
        delta = RowDelta(op, table, row_id, client_id, cells, hlc, identity)
        made.append((page, hlc, op, encode_delta(delta).decode()))
    parts = zip(*made, strict=True) if made else ([],) * len(DELTAS)
    arrays = [pa.array(part, field.type) for part, field in zip(parts, DELTAS, strict=True)]
    return pa.record_batch(arrays, DELTAS)


def _change(columns: str | None, before: str | None) -> tuple[Op, Mapping[str, Any]]:
    if columns is None:
        return "DELETE", {}
    if before is None:
        return "INSERT", _decode(columns)
    return "UPDATE", changed_columns(_decode(before), _decode(columns))
