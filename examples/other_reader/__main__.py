"""`scripts/other-reader`: compares figures of every table of a lake between LakeSync's reader and ClickHouse."""

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
from rich.table import Table as Shown

from examples.other_reader.figures import figures
from lakesync.analysis.catalogue import LakeReader
from lakesync.config import load

KINDS: dict[type[IcebergType], str] = {
    StringType: "text",
    DoubleType: "number",
    LongType: "whole",
    IntegerType: "whole",
    BooleanType: "truth",
}


def main() -> int:
    """Compare, and print the result."""
    parser = argparse.ArgumentParser(prog="scripts/other-reader", description=__doc__)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="the folder of a `lakesync up`")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    given = parser.parse_args()
    config = load({"data_dir": given.data} if given.data else {})
    with LakeReader(config) as lake:
        tables = {name: table for name in lake.state_tables if (table := lake.state_table(name)) is not None}
        if lake.deltas is not None:
            tables["deltas"] = lake.deltas
        places = {name: {"folder": _folder(table), "columns": _columns(table)} for name, table in tables.items()}
        ours = {name: _ours(table) for name, table in tables.items() if table.current_snapshot() is not None}
    places = {name: place for name, place in places.items() if name in ours}
    child = subprocess.run(
        [given.python, str(Path(__file__).with_name("clickhouse.py"))],
        input=json.dumps(places),
        cwd="/",  # ClickHouse reads files below its folder alone
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        print(child.stderr, file=sys.stderr)
        return 2
    theirs: dict[str, list[object]] = dict(map(json.loads, child.stdout.splitlines()))
    agree = {name: _same(values, theirs.get(name)) for name, values in ours.items()}
    shown = Shown("table", "rows", "figures compared", "agree", box=None)
    for name, values in ours.items():
        shown.add_row(name, f"{values[0]:,}", str(len(values)), "[green]yes[/]" if agree[name] else "[red]no[/]")
    Console(stderr=given.json).print(shown)
    if given.json:
        print(json.dumps({"tables": agree, "agree": all(agree.values())}))
    return 0 if agree and all(agree.values()) else 1


def _ours(table: Table) -> list[object]:
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
    return table.location().removeprefix("file://")


def _same(ours: list[object], theirs: list[object] | None) -> bool:
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
