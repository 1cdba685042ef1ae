"""Finds the rows that erasure requests cover: by conditions in Spark's SQL, and by a search of Parquet files.

A request covers the deltas (changes) of one row, or of one client, up to an hlc (the client's timestamp). It concerns
one gateway, an app's stream of deltas. A *shard* is a store of unflushed deltas for some of the tables; a request may
be limited to some shards. Conditions select what it covers in the lake's tables: the *history* of all deltas, the
*state tables* (current rows), and the rows that polls of connectors have read. A row id may be any text, so values are
passed as parameters and never become part of the SQL.

The search proves afterwards that nothing is left. A query is no proof: it shows neither the files of killed runs, which
no snapshot references, nor rows that are only marked as deleted. Both are still on disk, so Spark tasks read every file
in the table's folder. The modules of `lakehouse.erasure`, and `lakehouse.backends.erasures`, call this module.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from lakehouse.data_files import parse_iceberg_uri
from lakehouse.task_runner import in_tasks
from lakesync.model.errors import LakeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.staging.records import Erasure

_CONNECTOR = "connector:"
"""Prefix of the client ids under which connectors push."""
_IS_ROW = "table_name = {} AND row_id = {}"
"""Condition for one row, with `{}` in place of its table and its id."""


class Condition(NamedTuple):
    """A condition in Spark's SQL, with its parameters."""

    sql: str = ""
    """With `:p0`, `:p1` and so on in place of values; empty only as the start of `narrowed`."""
    parameters: Mapping[str, str | int] = MappingProxyType({})
    """Parameter name without the colon → value."""

    def narrowed(self, sql: str, *values: str | int) -> Condition:
        """Return this condition AND another one.

        Args:
            sql: the other condition, with `{}` in place of each value.
            values: the values, in order.
        """
        first = len(self.parameters)
        added = {f"p{first + number}": value for number, value in enumerate(values)}
        with_names = sql.format(*(f":{name}" for name in added))
        return Condition(f"{self.sql} AND {with_names}" if self.sql else with_names, {**self.parameters, **added})

    def select(self, spark: SparkSession, table: str, columns: str = "*") -> DataFrame:
        """Return the rows of a table that meet the condition.

        Args:
            spark: an open Spark session.
            table: the table's full, quoted name.
            columns: the SELECT list, in Spark's SQL.
        """
        return spark.sql(f"SELECT {columns} FROM {table} WHERE {self.sql}", args=dict(self.parameters))

    def execute(self, spark: SparkSession, statement: str) -> None:
        """Run an UPDATE or DELETE on the rows that meet the condition.

        Args:
            spark: an open Spark session.
            statement: `UPDATE … SET …` or `DELETE FROM …`, without WHERE.
        """
        spark.sql(f"{statement} WHERE {self.sql}", args=dict(self.parameters))


def deltas_of(requests: Sequence[Erasure]) -> Condition:
    """Return the condition for the deltas in the history (the table `deltas`) that any of the requests covers.

    Args:
        requests: at least one, all of the same gateway. A request that names no shards covers all of them.
    """
    covered: list[str] = []
    values: list[str | int] = []
    for each in requests:
        if each.client_id is None:  # the erasure of a row
            sql = _IS_ROW
            values += each.row
        else:
            sql = "client_id = {}"
            values.append(each.client_id)
        of_shards = f" AND shard IN ({', '.join(['{}'] * len(each.shards))})" if each.shards else ""
        covered.append(f"({sql} AND hlc <= {{}}{of_shards})")
        values += [each.hlc, *each.shards]
    return Condition().narrowed("gateway = {}", requests[0].gateway).narrowed(f"({' OR '.join(covered)})", *values)


def requests_of_table(requests: Iterable[Erasure], table: str, shards: Collection[str]) -> list[Erasure]:
    """Return the requests that may cover rows of a state table: of a row, or of a client that wrote to the table.

    Each shard has a request of its own for a client, with its own time. That of another shard than the table's may be
    later, and must not cover what the client wrote to the table in between.

    Args:
        requests: one gateway's requests.
        table: the state table's name.
        shards: the shards of the table's deltas.
    """

    def may_cover(request: Erasure) -> bool:
        if request.client_id is None:  # the erasure of a row
            return request.table == table
        return not request.shards or not {*shards}.isdisjoint(request.shards)

    return list(filter(may_cover, requests))


def polled_rows_of(request: Erasure, connector: str | None) -> Condition | None:
    """Return the condition for the polled rows that a request covers.

    A connector polls an external system: the table `landing` has polled rows as received, `known` the last version of
    each. The condition is for both and does not limit the time: rows of `known` have none, and the caller limits those
    of `landing` by their hlc. A row that a poll puts into `known` again is pushed again with a later hlc, which the
    request does not cover.

    Args:
        request: an erasure of a row or of a client.
        connector: name of the connector whose rows are erased; None for all connectors.

    Returns:
        The condition; None for a client that is not a connector, and so has no polled rows.
    """
    condition = Condition().narrowed("gateway = {}", request.gateway)
    if request.client_id is None:
        condition = condition.narrowed(_IS_ROW, *request.row)
    elif request.client_id.startswith(_CONNECTOR):
        condition = condition.narrowed("connector = {}", request.client_id.removeprefix(_CONNECTOR))
    else:
        return None
    return condition if connector is None else condition.narrowed("connector = {}", connector)


_MAX_TASKS = 16
"""Number of Spark tasks that read files, at most."""
_FOUND = pa.schema([("path", pa.string()), ("seq", pa.int64()), ("rows", pa.int64()), ("error", pa.string())])
"""Columns of the rows that tasks yield: a leftover, or the error of a file that cannot be read."""


class Leftover(msgspec.Struct, frozen=True):
    """A data file that still has rows which an erasure covers."""

    path: str
    """Path on pyarrow's file system."""
    seq: int
    """Number of the erasure request, among those of its gateway."""
    rows: int
    """Number of covered rows in the file."""


def find_leftovers(spark: SparkSession, location: str, requests: Sequence[Erasure], *, history: bool) -> list[Leftover]:
    """Return the Parquet files in a table's folder that have rows which one gateway's requests cover.

    Args:
        spark: an open Spark session.
        location: URI of the table's folder.
        requests: one gateway's requests; for a state table only those that cover a row of this table, or a client.
        history: True for the folder of `deltas`, False for that of a state table.

    Raises:
        LakeUnavailableError: a file cannot be read, so its content is unknown; or Spark cannot be reached.
    """
    parquet = [path for path in _data_files(location) if path.endswith(".parquet")]
    erasures = tuple(requests)

    def search_part(number: int) -> Iterator[pa.RecordBatch]:
        for path in parquet[number::_MAX_TASKS]:
            try:
                leftovers = list(leftovers_in_file(parse_iceberg_uri(location)[0], path, erasures, history=history))
            except (OSError, pa.ArrowInvalid) as error:
                rows: list[dict[str, str | int]] = [{"path": path, "error": str(error)}]
            else:
                rows = [{"path": each.path, "seq": each.seq, "rows": each.rows} for each in leftovers]
            yield pa.RecordBatch.from_pylist(rows, _FOUND)

    rows_of_tasks = in_tasks(spark, min(len(parquet), _MAX_TASKS), search_part, _FOUND).toArrow().to_pylist()
    for each in rows_of_tasks:
        if each["error"] is not None:
            raise LakeUnavailableError(
                f"the data file {each['path']} cannot be read ({each['error']}), so the erasure cannot be proven; if "
                "no snapshot references it, a killed run left it and maintenance removes it when it is old enough"
            )
    return [Leftover(each["path"], each["seq"], each["rows"]) for each in rows_of_tasks]


def delete_files(location: str, paths: Sequence[str]) -> None:
    """Delete files. A missing file is not an error.

    Args:
        location: URI of the table's folder, which selects the file system.
        paths: the files' paths on it.
    """
    file_system, _ = parse_iceberg_uri(location)
    for path in paths:
        if file_system.get_file_info(path).type != pafs.FileType.NotFound:
            file_system.delete_file(path)


def unreferenced_files(location: str, referenced: Iterable[str]) -> list[str]:
    """Return the paths of data files in a table's folder that no snapshot references.

    Args:
        location: URI of the table's folder.
        referenced: URIs of the files that any of its snapshots references.
    """
    return sorted(set(_data_files(location)) - {parse_iceberg_uri(uri)[1] for uri in referenced})


def leftovers_in_file(
    file_system: pafs.FileSystem, path: str, requests: Sequence[Erasure], *, history: bool
) -> Iterator[Leftover]:
    """Yield a leftover for each request that covers rows of a data file. Delete files have none.

    Args:
        file_system: the file's file system.
        path: the path on it.
        requests: one gateway's requests; for a state table only those that cover a row of this table, or a client.
        history: True for a file of `deltas`, False for one of a state table.

    Raises:
        OSError, pyarrow.ArrowInvalid: the file cannot be read.
    """
    counts = dict.fromkeys((request.seq for request in requests), 0)
    columns = _HISTORY if history else _STATE
    with file_system.open_input_file(path) as source:
        file = pq.ParquetFile(source)
        if not set(columns) <= set(file.schema_arrow.names):
            return  # a delete file
        for batch in file.iter_batches(columns=list(columns), batch_size=50_000):
            for request in requests:
                counts[request.seq] += _count_covered(batch, request, history=history)
    yield from (Leftover(path, seq, rows) for seq, rows in counts.items() if rows)


_HISTORY = ("gateway", "shard", "table_name", "row_id", "op", "client_id", "hlc", "width", "columns")
"""The columns of `deltas` that are searched."""
_STATE = ("_gateway", "_row", "_cells", "_inserted")
"""The columns of a state table that are searched. `_cells` maps a column to its value, hlc and client id; `_inserted`
has the hlc and client id of the row's INSERT."""


def _data_files(location: str) -> list[str]:
    """Return the paths of all data files in a table's folder, and of the delete files beside them."""
    file_system, root = parse_iceberg_uri(location)
    selector = pafs.FileSelector(f"{root}/data", allow_not_found=True, recursive=True)
    return [info.path for info in file_system.get_file_info(selector) if info.is_file]


def _count_covered(batch: pa.RecordBatch, request: Erasure, *, history: bool) -> int:
    """Return the number of rows with contents that a request covers."""
    if history:
        covered = pc.and_(pc.equal(batch["gateway"], request.gateway), pc.less_equal(batch["hlc"], request.hlc))
        if request.shards:
            covered = pc.and_(covered, pc.is_in(batch["shard"], pa.array(request.shards)))
        if request.client_id is not None:
            covered = pc.and_(covered, pc.equal(batch["client_id"], request.client_id))
        else:
            covered = pc.and_(covered, pc.equal(batch["table_name"], request.table))
            covered = pc.and_(covered, pc.equal(batch["row_id"], request.row_id))
        return sum(_has_content(row) for row in batch.filter(covered).to_pylist())
    covered = pc.equal(batch["_gateway"], request.gateway)
    if request.client_id is None:
        covered = pc.and_(covered, pc.equal(batch["_row"], request.row_id))
    return sum(_has_covered_part(row, request) for row in batch.filter(covered).to_pylist())


def _has_content(delta: dict[str, Any]) -> bool:
    """Return whether a delta of the history still has contents, which `lakehouse.erasure.redaction` removes.

    `width` is the number of its columns, which may remain after the columns themselves were removed.
    """
    return delta["op"] == "INSERT" or bool(delta["width"] or delta["columns"])


def _has_covered_part(row: dict[str, Any], request: Erasure) -> bool:
    """Return whether a row of a state table has a value or an INSERT that the request covers.

    An erasure of a client covers only what this client wrote, an erasure of a row what any client wrote.
    """
    stamps = [cell for _, cell in row["_cells"] or ()]
    if row["_inserted"] is not None:
        stamps.append(row["_inserted"])
    return any(each["hlc"] <= request.hlc and request.client_id in (None, each["client_id"]) for each in stamps)
