"""`scripts/other-reader`: checks that ClickHouse reads the same from a lake's Iceberg tables as LakeSync's own reader.

Both readers compute figures of every table, such as counts, sums and extremes of its columns. ClickHouse runs
`clickhouse.py` in an interpreter of its own, because its package is not one of LakeSync's dependencies.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import duckdb
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, DoubleType, IcebergType, IntegerType, LongType, StringType
from rich.console import Console
from rich.table import Table as RichTable

from examples.other_reader.clickhouse import figures
from lakesync.analysis.catalogue import LakeReader
from lakesync.config import load

KINDS: dict[type[IcebergType], str] = {
    StringType: "text",
    DoubleType: "number",
    LongType: "whole",
    IntegerType: "whole",
    BooleanType: "boolean",
}
"""Iceberg type → the kind of column for `figures`; columns of other types are not compared."""


def main() -> int:
    """Compare, and print the result. Return 0 if all figures agree, 1 if not, and 2 if ClickHouse could not run."""
    parser = argparse.ArgumentParser(prog="scripts/other-reader", description=__doc__.partition("\n")[0])
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="the folder of a `lakesync up`")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    given = parser.parse_args()
    config = load({"data_dir": given.data} if given.data else {})
    with LakeReader(config) as lake:
        tables = {name: table for name in lake.state_tables if (table := lake.state_table(name)) is not None}
        if lake.deltas is not None:
            tables["deltas"] = lake.deltas
        tables = {name: table for name, table in tables.items() if table.current_snapshot() is not None}
        queries = {name: {"folder": _folder(table), "columns": _columns(table)} for name, table in tables.items()}
        ours = {name: _figures(table) for name, table in tables.items()}
    child = subprocess.run(
        [given.python, str(Path(__file__).with_name("clickhouse.py"))],
        input=json.dumps(queries),
        cwd="/",  # ClickHouse only reads files below its working folder
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        print(child.stderr, file=sys.stderr)
        return 2
    theirs: dict[str, list[object]] = dict(map(json.loads, child.stdout.splitlines()))
    agree = {name: _same(values, theirs.get(name)) for name, values in ours.items()}
    summary = RichTable("table", "rows", "figures compared", "agree", box=None)
    for name, values in ours.items():
        summary.add_row(name, f"{values[0]:,}", str(len(values)), "[green]yes[/]" if agree[name] else "[red]no[/]")
    Console(stderr=given.json).print(summary)
    if given.json:
        print(json.dumps({"tables": agree, "agree": all(agree.values())}))
    return 0 if agree and all(agree.values()) else 1


def _figures(table: Table) -> list[object]:
    """Return the figures of a table as LakeSync's reader, pyiceberg with DuckDB, computes them."""
    columns = _columns(table)
    with duckdb.connect() as database:
        database.register("read", table.scan(selected_fields=tuple(columns)).to_arrow())
        row = database.execute(figures(columns, "read", dialect="duckdb")).fetchone()
    return list(row or ())


def _columns(table: Table) -> dict[str, str]:
    """Return the columns that both readers can aggregate, by kind; nested columns and dates are excluded."""
    kinds = {field.name: KINDS.get(type(field.field_type)) for field in table.schema().fields}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _folder(table: Table) -> str:
    """Return the path of a table's folder, as Iceberg names it: without the scheme of its URI, and not decoded."""
    return table.location().removeprefix("file://")


def _same(ours: list[object], theirs: list[object] | None) -> bool:
    """Return whether both readers have the same figures of a table; `theirs` is None if ClickHouse returned none."""
    return theirs is not None and [_plain(value) for value in ours] == [_plain(value) for value in theirs]


def _plain(value: object) -> object:
    """Normalise numbers: ClickHouse writes 64-bit integers as text, and an empty `min` as an empty text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return float(value) if isinstance(value, int | float) else value


if __name__ == "__main__":
    sys.exit(main())
