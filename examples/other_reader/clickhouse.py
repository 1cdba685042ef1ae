"""Figures of a table that must be equal for any two readers of it, and a program that computes them by ClickHouse.

`__main__.py` imports `figures`, and runs this file with an interpreter that has ClickHouse's package and nothing of
LakeSync. So the file imports neither LakeSync nor, outside of `main`, ClickHouse.
"""

from __future__ import annotations

import json
import sys

MODULUS = 1_000_003
"""Whole numbers are summed modulo this number, so that no sum overflows."""


def figures(columns: dict[str, str], source: str, *, dialect: str) -> str:
    """Return the query: the number of rows, then figures of each column.

    Args:
        columns: column → its kind: `text`, `number`, `whole` or `boolean`. A `number` is a float; it is not summed, as
            such a sum depends on the order of the rows.
        source: SQL for the table, after FROM.
        dialect: `duckdb` or `clickhouse`.
    """
    length = "strlen" if dialect == "duckdb" else "length"
    parts = ["count(*)"]
    for name, kind in columns.items():
        column = f'"{name}"'
        parts.append(f"count({column})")
        match kind:
            case "text":
                parts += [
                    f"count(DISTINCT {column})",
                    f"coalesce(sum({length}({column})), 0)",
                    f"min({column})",
                    f"max({column})",
                ]
            case "number":
                parts += [f"min({column})", f"max({column})"]
            case "whole":
                parts += [f"coalesce(sum({column} % {MODULUS}), 0)", f"min({column})", f"max({column})"]
            case "boolean":
                parts.append(f"coalesce(sum(CASE WHEN {column} THEN 1 ELSE 0 END), 0)")
    return f"SELECT {', '.join(parts)} FROM {source}"


def main() -> None:
    """Read `{table: {"folder": …, "columns": {column: kind}}}` from stdin, and print `[table, figures]` per table."""
    import chdb  # type: ignore[import-not-found]  # only the interpreter that runs this file has it

    for table, query in json.load(sys.stdin).items():
        source = f"icebergLocal('{query['folder'].replace(chr(39), chr(39) * 2)}')"
        response = chdb.query(figures(query["columns"], source, dialect="clickhouse"), "JSONCompactEachRow")
        print(json.dumps([table, json.loads(str(response))]), flush=True)


if __name__ == "__main__":
    main()
