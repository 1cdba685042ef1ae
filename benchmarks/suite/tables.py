"""Deltas per second that are merged from the history into a state table, and small increments into a large table.

For comparison DuckDB merges the same files without writing the result (`duckdb_rate`). Increments change neighbouring
rows (`increment_…`), then rows all over the table (`scattered_…`).
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

import duckdb
import msgspec

from benchmarks import server
from benchmarks.lake import GATEWAY, TASKS, Lake, SyntheticHistory, arrival_of, lake, write_history
from benchmarks.suite import Benchmark
from lakehouse.table_access import open_table, planned_files
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import NAMES, LakeNames
from lakehouse.tables.merging import merge_table

_WARM_MERGES = 8
"""Merges before the measurement, to warm up Spark."""
_INCREMENTS = 4
"""Number of measured increments of each kind."""
_SCATTERED = 7_368_787
"""A stride that scatters rows over the table."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--deltas", type=int, default=300_000, help="deltas of the large merge")
    parser.add_argument("--rows", type=int, default=75_000, help="rows of the table that they are merged into")
    parser.add_argument("--increment", type=int, default=10_000, help="deltas of an increment")
    parser.add_argument("--increment-rows", type=int, default=0, help="rows of the increments' table; 0: no increments")
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")
    parser.add_argument("--no-baseline", action="store_true", help="do not measure DuckDB")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    with server.temporary_folder(options.folder) as folder, lake(folder / "lake", options.memory) as bench:
        inserts = SyntheticHistory(0, options.rows, options.rows)
        history = SyntheticHistory(options.rows, options.deltas, options.rows)
        write_history(bench.spark, inserts)
        write_history(bench.spark, history)
        _warm(bench, inserts)
        merge_table(bench.spark, TASKS, {GATEWAY: inserts.last_arrival})
        found = _merge(bench, history, NAMES)
        if not options.no_baseline:
            found |= _against_duckdb(bench, found["rate"])
        if options.increment_rows:
            found |= _increment(bench, options.increment_rows, options.increment)
        return found


def _warm(bench: Lake, inserts: SyntheticHistory) -> None:
    """Merge into another table before the measurement, so that Spark has loaded its classes and started its workers."""
    names = msgspec.structs.replace(NAMES, tables="warm")
    for part in range(1, _WARM_MERGES + 1):
        upto = arrival_of(inserts.rows * part // _WARM_MERGES - 1)
        merge_table(bench.spark, TASKS, {GATEWAY: upto}, names=names)


def _merge(bench: Lake, history: SyntheticHistory, names: LakeNames) -> dict[str, Any]:
    """Merge the history into the state table, up to the history's last arrival, and return the figures."""
    with bench.measure() as spent:
        report = merge_table(bench.spark, TASKS, {GATEWAY: history.last_arrival}, names=names)
    return {
        "deltas": report.deltas_in,
        "rows": report.rows_merged,
        "seconds": spent[0].seconds,
        "rate": round(report.deltas_in / spent[0].seconds),
        "cpu_us_per_delta": round(spent[0].cpu_seconds / report.deltas_in * 1e6, 1),
        "peak_mib": spent[0].rss_peak_mib,
    }


def _against_duckdb(bench: Lake, rate: int) -> dict[str, Any]:
    """Merge the history's files with DuckDB, and compare its rate with that of the lake.

    The query computes, for each row and column, the value with the greatest hlc and client id, as a merge does; then
    each row with all its values. It returns only a count and a length, so that DuckDB has to compute all of them.
    """
    with open_table(bench.spark, NAMES.deltas) as table:
        files = planned_files(table, table.metadata.current_snapshot_id)
    paths = [file.file.file_path.removeprefix("file:") for file in files]
    begun = time.perf_counter()
    with duckdb.connect(config={"threads": 2}) as connection:
        count = connection.execute(
            "WITH cells AS (SELECT gateway, row_id, hlc, client_id, delta_id, unnest(map_entries(columns)) AS cell "
            "FROM read_parquet(?)), "
            "owned AS (SELECT gateway, row_id, cell.key AS name, max({'h': hlc, 'c': client_id, 'v': cell.value, "
            "'d': delta_id}) AS cell FROM cells GROUP BY ALL) "
            "SELECT count(*), sum(length(cell.v)) FROM (SELECT gateway, row_id, map_from_entries(list((name, cell))) "
            "AS cells, max(cell) AS cell FROM owned GROUP BY ALL)",
            [paths],
        ).fetchone()
        deltas = connection.execute("SELECT count(*) FROM read_parquet(?)", [paths]).fetchone()
    assert count is not None
    assert deltas is not None
    duck = round(deltas[0] / (time.perf_counter() - begun))
    return {"duckdb_rate": duck, "duckdb_ratio": round(rate / duck, 2)}


def _increment(bench: Lake, rows: int, deltas: int) -> dict[str, Any]:
    """Merge several increments into a new table: first into neighbouring rows, then into scattered rows.

    Args:
        bench: the lake.
        rows: number of the table's rows.
        deltas: deltas of one increment.
    """
    names = LakeNames(system="increment", tables="increment")
    whole = SyntheticHistory(0, rows, rows)
    ensure_deltas(bench.spark, names)
    write_history(bench.spark, whole, names)
    first = _merge(bench, whole, names)
    found = []
    for number in range(2 * _INCREMENTS):
        stride = whole.stride if number < _INCREMENTS else _SCATTERED
        more = SyntheticHistory(rows + number * deltas, deltas, rows, stride)
        write_history(bench.spark, more, names)
        found.append(_merge(bench, more, names))
    figures: dict[str, Any] = {"first_merge_rate": first["rate"], "increment_deltas": deltas, "increment_rows": rows}
    for name, part in (("increment", found[:_INCREMENTS]), ("scattered", found[_INCREMENTS:])):
        figures[f"{name}_seconds"] = [each["seconds"] for each in part]
        figures[f"{name}_cpu_seconds"] = [round(each["cpu_us_per_delta"] * deltas / 1e6, 2) for each in part]
    return figures


BENCHMARKS = (Benchmark("tables", __doc__, arguments, run),)
