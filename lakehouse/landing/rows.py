"""Builds the rows of the Iceberg table `landing`, and reads them and those of `known` from Parquet files.

A poll reads an external system (the source) page by page through a connector, and appends the pages to `landing`. Each
such commit, of one or more pages, is a *landing*. Each row gets an hlc (a timestamp, by which later changes win); the
number of a page is the hlc of its first row. The table `known` has the version of each row as of some page, with which
later pages are compared. A page may *claim* to have all rows with some value in some column, such as all comments of
one issue; then known rows with this value that the page lacks are deleted.

The Spark tasks of a poll build rows with `LandedRows`. The driver describes the tables' files with `LandedFile` and
`LandedTable`, from which later tasks read them. Importing this module loads neither pyiceberg nor Spark.
"""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.data_files import DataFile, read_rows
from lakehouse.marks import utc_day
from lakesync.connectors.seen_rows import SeenRows
from lakesync.model import hlc
from lakesync.model.delta import jcs_raw
from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.validation import MAX_ROW_BYTES, MAX_ROW_COLUMNS, check_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date

    from lakesync.connectors.base import Page


ROW, DELETED_ROW, CLAIM, POSITION = "row", "gone", "whole", "place"
"""Values of the column `kind`.

`ROW`: a row as it was read. `DELETED_ROW`: the source reports the row as deleted. `CLAIM`: the page contains all rows
with some value in some column, so that other known rows with the value are deleted. `POSITION`: how far the table was
read, from which the next poll continues.
"""

REPORT = "report"
"""Kind of the rows with which tasks report to the driver. They are not written to `landing`."""

LANDED_COLUMNS = pa.schema(
    [
        ("gateway", pa.string()),
        ("connector", pa.string()),
        ("day", pa.date32()),
        ("landing", pa.int64()),
        ("table_name", pa.string()),
        ("kind", pa.string()),
        ("page", pa.int64()),
        ("hlc", pa.int64()),
        ("row_id", pa.string()),
        ("columns", pa.string()),
        ("name", pa.string()),
        ("value", pa.string()),
    ]
)
"""The columns of `landing`: `page` is the hlc of its first row, `columns` the row or read position as JSON, `name` and
`value` a claim."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class ReadPosition(msgspec.Struct, frozen=True):
    """How far a connector has read one table."""

    type: str
    """The connector's type. A connector of another type cannot use the cursor."""
    origin: str = ""
    """The `Table.origin` for which the cursor is valid; empty if the source has none."""
    cursor: dict[str, Any] | None = None
    """Where the next poll continues; None: from the beginning."""
    census_ms: int | None = msgspec.field(default=None, name="counted_ms")
    """Wall time of the last census (a list of all ids in the source) in milliseconds since 1970; None before the first.
    Stored as `counted_ms`."""
    seen: SeenRows = msgspec.field(default_factory=SeenRows)
    """Digests of the newest rows. Sources may return these rows again in the next poll, which skips them."""


class Constants(NamedTuple):
    """The columns with one value for all rows of a landing."""

    gateway: str
    connector: str
    day: date
    """UTC day of the landing's first hlc."""
    landing: int
    """Number of the landing, counted per connector."""

    @classmethod
    def of(cls, gateway: str, connector: str, landing: int, first: int) -> Constants:
        """Return the constants of a landing.

        Args:
            gateway: id of the connector's gateway.
            connector: the connector's name.
            landing: number of the landing, counted per connector.
            first: the landing's first hlc.
        """
        return cls(gateway, connector, utc_day(hlc.wall_of(first)), landing)


class LandedRows:
    """Collects the rows of one landing and assigns each an hlc."""

    def __init__(self, constants: Constants, first: int) -> None:
        """Start without rows.

        Args:
            constants: the columns with one value for all rows.
            first: the first hlc to assign. Each further row gets the next number.
        """
        self.constants = constants
        self._next_hlc = first
        self.bytes = 0
        """Bytes of JSON added so far."""
        self._columns: list[list[Any]] = [[] for _ in range(len(LANDED_COLUMNS) - len(self.constants))]

    @property
    def count(self) -> int:
        """Number of collected rows."""
        return len(self._columns[0])

    @property
    def newest(self) -> int:
        """The highest assigned hlc."""
        return self._next_hlc - 1

    def add(self, page: Page) -> None:
        """Add a page's rows, deletes and claims. They all get the page's number, which is the hlc of its first row."""
        first = self._next_hlc
        for row in page.rows:
            text = _encode_sorted(row.columns)
            self.bytes += len(text)
            self._put(page.table, ROW, first, row.row_id, text.decode())
        for row_id in page.deleted:
            self._put(page.table, DELETED_ROW, first, row_id)
        for name, value in page.complete:
            self._put(page.table, CLAIM, first, None, None, name, value)

    def position(self, table: str, position: ReadPosition) -> None:
        """Add a table's read position.

        Args:
            table: the table's name.
            position: how far the table was read.
        """
        self._put(table, POSITION, self._next_hlc, None, msgspec.json.encode(position).decode())

    def report(self, table: str, text: str) -> None:
        """Add a task's report of a table. It takes no hlc, because it is not written to `landing`.

        Args:
            table: the table's name.
            text: the report as JSON.
        """
        self._put(table, REPORT, self._next_hlc, None, text)
        self._next_hlc -= 1  # `_put` has taken one

    def table(self) -> pa.Table:
        """Return the collected rows in the columns `LANDED_COLUMNS`."""
        columns = [*([value] * self.count for value in self.constants), *self._columns]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, LANDED_COLUMNS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=LANDED_COLUMNS)

    def take(self) -> pa.RecordBatch:
        """Return the collected rows and start again without rows. Hlcs continue."""
        (batch,) = self.table().combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], LANDED_COLUMNS)]
        for column in self._columns:
            column.clear()
        return batch

    def _put(self, table: str, kind: str, page: int, row_id: str | None, *columns_name_value: str | None) -> None:
        """Append a row. `columns_name_value` has its `columns`, `name` and `value`; missing ones are null."""
        values = (table, kind, page, self._next_hlc, row_id, *columns_name_value)
        for column, value in zip_longest(self._columns, values):
            column.append(value)
        self._next_hlc += 1


def check_rows(page: Page) -> None:
    """Check that a gateway accepts the rows of a page. If one landed that it rejects, no later row could be pushed.

    Raises:
        ConfigurationError: a row id, the name of a column or a value is invalid.
    """
    for row in page.rows:
        if (fault := check_id("row id", row.row_id)) is not None:
            raise ConfigurationError(f"a row of {page.table} cannot be synced: its {fault}")
        for name, value in row.columns.items():
            is_huge = isinstance(value, int) and value.bit_length() >= sys.float_info.max_exp  # no finite double
            if is_huge or isinstance(value, dict | list | tuple):
                try:
                    jcs_raw(msgspec.json.encode(value))  # as the id of its delta is computed
                except (ValidationError, RecursionError) as error:
                    raise ConfigurationError(
                        f"the column {name!r} of the row {row.row_id!r} of {page.table} cannot be synced: {error}"
                    ) from error
        size = len(msgspec.json.encode(row.columns))
        if len(row.columns) > MAX_ROW_COLUMNS or size > MAX_ROW_BYTES:
            raise ConfigurationError(
                f"the row {row.row_id!r} of {page.table} cannot be synced: it has {len(row.columns)} columns and "
                f"{size} bytes, at most {MAX_ROW_COLUMNS} and {MAX_ROW_BYTES} are allowed: leave some out"
            )
    spellings: dict[str, str] = {}
    for name in sorted({name for row in page.rows for name in row.columns}):
        if (other := spellings.setdefault(name.lower(), name)) != name:
            raise ConfigurationError(
                f"the columns {other!r} and {name!r} of {page.table} differ only in case: rename one in the query"
            )
        if not is_identifier(name):
            raise ConfigurationError(
                f"the column {name!r} of {page.table} is no identifier: rename it in the query, with letters, digits "
                "and _, at most 64, no digit first"
            )


BUCKETS = 4
"""Number of buckets by row id of the table `known`, the current rows of each polled table."""


class LandedFile(NamedTuple):
    """A file of `landing` with the bounds of its columns from Iceberg's metadata, by which readers skip files.

    A page is numbered by the hlc of its first row.
    """

    path: str
    rows: int
    bytes: int
    day: date
    """UTC day of the landing."""
    first_landing: int
    """Lowest number of a landing in the file."""
    landing: int
    """Highest number of a landing in the file."""
    first_page: int
    """The file's first page."""
    last_page: int
    """The file's last page."""
    highest_hlc: int
    """Highest hlc in the file."""
    has_claims: bool
    """Whether the file has rows of kind `CLAIM`."""
    tables: tuple[str, str] = ("", chr(0x10FFFF))
    """The file's first and last table in alphabetical order; by default it may have any table."""

    def may_have(self, table: str) -> bool:
        """Return whether the file may have rows of a table."""
        return self.tables[0] <= table <= self.tables[1]


NO_PAGE = -1
"""A page before every landed page; also page and hlc of the versions in the table `known`, which are older."""

KNOWN_ROWS = pa.schema([("row_id", pa.string()), ("columns", pa.string())])
"""Columns of known rows; `columns` is the row as JSON."""

ROWS_AT_ONCE = 10_000
"""Rows of a file that are decoded at once."""

_LANDED = pa.schema([field for field in LANDED_COLUMNS if field.name not in Constants._fields])
"""The columns of landed rows that are read from files: those that differ within a landing."""
_CLAIMS = pa.schema([LANDED_COLUMNS.field(name) for name in ("table_name", "name")])
"""The columns by which the columns with claims are found."""


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
        """Return the columns in which pages have claims, and the identity column, in which each row has one."""
        columns = {self.identity} if self.identity is not None else set()
        for file in self.files:
            if not file.has_claims:
                continue
            for rows in _rows(file.path, _CLAIMS):
                rows_of_table = rows.filter(pc.equal(rows["table_name"], self.table))
                columns |= set(pc.unique(rows_of_table["name"].drop_null()).to_pylist())
        return tuple(sorted(columns))

    def pages(self, after: int, through: int, row_ids: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the table's landed rows in a range of pages, unordered.

        Args:
            after: the page after which the range begins.
            through: the last page of the range.
            row_ids: ids of the rows to return. None for all rows and also claims, which have no row id.
        """
        for file in self.files:
            if file.last_page <= after or file.first_page > through:
                continue
            for rows in _rows(file.path, _LANDED, row_ids):
                is_in_range = pc.and_(pc.greater(rows["page"], after), pc.less_equal(rows["page"], through))
                is_of_table = pc.and_(pc.equal(rows["table_name"], self.table), pc.not_equal(rows["kind"], POSITION))
                yield rows.filter(pc.and_(is_in_range, is_of_table))

    def known_rows(self, bucket: int | None = None, row_ids: pa.Array | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `known`, in the columns `KNOWN_ROWS`.

        Args:
            bucket: number of the bucket to read; None for all.
            row_ids: ids of the rows to return; None for all.
        """
        for own_bucket, path in self.known:
            if bucket is not None and bucket != own_bucket:
                continue
            yield from _rows(path, KNOWN_ROWS, row_ids)


class LandedRow(NamedTuple):
    """A row of `landing`: a version, a delete or a claim. Only the fields that its `kind` has may be read."""

    kind: str
    page: int
    hlc: int
    row_id: str
    columns: str
    name: str
    value: str


def landed_rows(tables: Iterable[pa.Table]) -> Iterator[LandedRow]:
    """Yield the rows of tables, such as `LandedTable.pages` returns, one by one."""
    for rows in tables:
        yield from map(LandedRow._make, value_tuples(rows, *LandedRow._fields))


def value_tuples(rows: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of its values in the columns `names`."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _rows(path: str, schema: pa.Schema, row_ids: pa.Array | None = None) -> Iterator[pa.Table]:
    """Yield the columns of `schema` of a file's rows, or with `row_ids` of those with these ids."""
    return read_rows(DataFile(path), schema, key="row_id", wanted=row_ids, batch_rows=ROWS_AT_ONCE)
