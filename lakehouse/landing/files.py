"""Reads a polled table's landed rows from Parquet files, and computes the deltas that the gateway lacks.

A poll of an external system lands pages of rows in the lake's table `landing`. A page is numbered by the hlc of its
first row. The lake's table `known` has the rows as they were after a certain page. A page may claim to have all rows
with a value in a column; then known rows with this value that it lacks are deleted. The code runs in Spark tasks, which
`lakehouse.landing.reading` starts.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.data_files import data_file_path, on_s3
from lakehouse.landing.row_versions import NO_PAGE, ClaimKeys, Claims, Version, replay_versions
from lakehouse.landing.rows import GONE, OLD_MARK, POSITION, ROW, WHOLE, LandedFile
from lakesync.connectors.base import changed_columns
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, Op, RowDelta
from lakesync.wire.json import encode_delta

ROWS_AT_ONCE = 10_000
"""Rows of a file that are decoded at once."""

DELTA_SCHEMA = "page bigint, hlc bigint, op string, delta string"
"""Columns of computed deltas; `delta` is the delta as JSON."""

DELTAS = pa.schema([("page", pa.int64()), ("hlc", pa.int64()), ("op", pa.string()), ("delta", pa.string())])
"""`DELTA_SCHEMA` in Arrow's types."""

KNOWN_ROWS = pa.schema([("row_id", pa.string()), ("columns", pa.string())])
"""Columns of known rows; `columns` is the row as JSON."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LANDED = ["table_name", "kind", "page", "hlc", "row_id", "columns", "name", "value"]


class LandedTable(NamedTuple):
    """The files with a table's landed and known rows. It is sent to tasks."""

    table: str
    identity: str | None
    """The column that identifies a row at the source: a row replaces others with the same value in it. None if the
    source has no such column."""
    files: tuple[LandedFile, ...]
    """The files of `landing` with pages later than `since`."""
    known: tuple[tuple[int, str], ...]
    """Bucket and path of each file of `known`."""
    since: int
    """The last page that is in `known` already."""

    def claim_columns(self) -> tuple[str, ...]:
        """Return the columns in which pages have claims. The identity column is one: each row claims its own value."""
        found = {self.identity} if self.identity is not None else set()
        for file in self.files:
            if not file.claims:
                continue
            for rows in _file_rows(file.path, ["table_name", "name"], None):
                mine = rows.filter(pc.equal(rows["table_name"], self.table))
                found |= set(pc.unique(mine["name"].drop_null()).to_pylist())
        return tuple(sorted(found))

    def pages(self, above: int, upto: int, among: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the table's landed rows in a range of pages, unordered.

        Args:
            above: the page after which the range begins.
            upto: the last page of the range.
            among: ids of the rows to return. None for all rows and also claims, which have no row id.
        """
        for file in self.files:
            if file.last <= above or file.first > upto:
                continue
            for rows in _file_rows(file.path, _LANDED, among):
                within = pc.and_(pc.greater(rows["page"], above), pc.less_equal(rows["page"], upto))
                mine = pc.and_(pc.equal(rows["table_name"], self.table), pc.not_equal(rows["kind"], POSITION))
                yield rows.filter(pc.and_(within, mine))

    def known_rows(self, bucket: int | None = None, among: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `known`, in the columns `KNOWN_ROWS`.

        Args:
            bucket: number of the bucket to read; None for all.
            among: ids of the rows to return; None for all.
        """
        for own_bucket, path in self.known:
            if bucket is not None and bucket != own_bucket:
                continue
            for rows in _file_rows(path, KNOWN_ROWS.names, among):
                yield rows.filter(pc.not_equal(rows["row_id"], OLD_MARK))


def _file_rows(path: str, columns: list[str], among: pa.Array | None) -> Iterator[pa.Table]:
    """Yield a file's rows, or with `among` those with these ids. Row groups without such rows are skipped."""
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
    """A range of pages whose deltas are computed, divided among tasks by row id."""

    landed: LandedTable
    client_id: str
    """Client id of the deltas."""
    above: int
    """The page after which the range begins."""
    upto: int
    """The last page of the range."""
    parts: int = 1
    """Number of tasks."""

    def deltas(self, part: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the deltas of one task's rows, in the columns `DELTA_SCHEMA`."""
        yield from _PendingRows(self, part).deltas()


class _PendingRows:
    """One task's rows that the pages contain or claim, with all versions that are needed to compute their deltas.

    A version is the row in one page, or in `known`.
    """

    def __init__(self, pages: PendingPages, part: int) -> None:
        self._pages = pages
        self._landed = pages.landed
        self._part = part
        self._claim_columns = pages.landed.claim_columns()
        self._keys = ClaimKeys(self._claim_columns)
        self._claims = Claims()
        self._versions: dict[str, list[Version]] = {}
        self._gone: dict[str, list[tuple[int, int]]] = {}
        for row in self._landed_rows(pages.above, pages.upto):
            self._add_claims(row)
            if self._is_mine(row):
                self._add_version(row)
        self._read_earlier_versions()

    def deltas(self) -> Iterator[pa.RecordBatch]:
        """Yield the deltas in the columns `DELTA_SCHEMA`."""
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

    def _read_earlier_versions(self) -> None:
        """Read the versions of these rows from before the pages: from `known`, and from landings since then."""
        landed, above = self._landed, self._pages.above
        wanted = {*self._versions, *self._gone}
        row_ids = pa.array(sorted(wanted), pa.string())
        for rows in landed.known_rows(among=None if self._claim_columns else row_ids):
            for row_id, columns in value_tuples(rows, *KNOWN_ROWS.names):
                if row_id in wanted or self._is_claimed(row_id, columns):
                    wanted.add(row_id)
                    self._versions.setdefault(row_id, []).append(Version(NO_PAGE, NO_PAGE, columns))
        if self._claim_columns:
            found = (row for row in self._landed_rows(landed.since, above) if row.kind == ROW)
            wanted |= {row.row_id for row in found if self._is_claimed(row.row_id, row.columns)}
        for row in self._landed_rows(landed.since, above, None if self._claim_columns else row_ids):
            if row.row_id in wanted:
                self._add_version(row)
        if self._claim_columns:
            keys = {key for versions in self._versions.values() for each in versions for key in self._keys.of(each[2])}
            for row in self._landed_rows(landed.since, above):
                self._add_claims(row, keys)

    def _landed_rows(self, above: int, upto: int, among: pa.Array | None = None) -> Iterator[LandedRow]:
        """Yield the landed rows of `LandedTable.pages` one by one."""
        for rows in self._landed.pages(above, upto, among):
            yield from map(LandedRow._make, value_tuples(rows, *LandedRow._fields))

    def _add_version(self, row: LandedRow) -> None:
        """Remember a row's version, or that the row is gone since some page."""
        if row.kind == ROW:
            self._versions.setdefault(row.row_id, []).append(Version(row.page, row.hlc, row.columns))
        elif row.kind == GONE:
            self._gone.setdefault(row.row_id, []).append((row.page, row.hlc))

    def _add_claims(self, row: LandedRow, among: Collection[tuple[str, str]] | None = None) -> None:
        """Remember the keys that a landed row claims, or only those `among` some keys."""
        for key in claims_of(row, self._landed.identity, self._keys):
            if among is None or key in among:
                self._claims.add(*key, row.page, row.hlc)

    def _is_claimed(self, row_id: str, columns: str) -> bool:
        """Return whether a row is this task's, and has a value that a page claims."""
        mine = self._of_part(row_id)
        return mine and any(key in self._claims for key in self._keys.of(columns))

    def _is_mine(self, row: LandedRow) -> bool:
        return row.kind != WHOLE and self._of_part(row.row_id)

    def _of_part(self, row_id: str) -> bool:
        """Return whether this task's part has a row id; ids are distributed by their CRC."""
        return self._pages.parts == 1 or zlib.crc32(row_id.encode()) % self._pages.parts == self._part


class LandedRow(NamedTuple):
    """A row of `landing`: a version, a delete or a claim. Fields that its kind does not have are None."""

    kind: str
    page: int
    hlc: int
    row_id: str
    columns: str
    name: str
    value: str


def claims_of(row: LandedRow, identity: str | None, keys: ClaimKeys) -> Iterator[tuple[str, str]]:
    """Yield the claims of a landed row, as `(column, value)`: its page has all rows with this value.

    Args:
        row: the landed row.
        identity: the column that identifies rows at the source; None if the source has no such column.
        keys: reads the claimed columns from a row's JSON.
    """
    if row.kind == WHOLE:
        yield row.name, row.value
    elif row.kind == ROW and identity is not None:
        yield from (key for key in keys.of(row.columns) if key[0] == identity)


def value_tuples(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of its values in the columns `names`."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _no_keys(_: str) -> tuple[tuple[str, str], ...]:
    return ()


def delta_batch(
    events: Iterable[tuple[str, int, int, str | None, str | None]], client_id: str, table: str
) -> pa.RecordBatch:
    """Return changes of rows as deltas, in the columns `DELTA_SCHEMA`. Changes without an effect are left out.

    Args:
        events: `(row id, page, hlc, columns after, columns before)`, columns as JSON; None where there is no row.
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
    """Return the operation and the changed columns of a row's change; see `delta_batch`."""
    if columns is None:
        return "DELETE", {}
    if before is None:
        return "INSERT", _decode(columns)
    return "UPDATE", changed_columns(_decode(before), _decode(columns))
