"""Computes figures of tables with ClickHouse. `__main__.py` runs it with an interpreter that has its package."""

from __future__ import annotations

import json
import sys

import chdb  # type: ignore[import-not-found]  # this environment has it, and nothing of LakeSync
from figures import figures  # type: ignore[import-not-found]  # beside this file


def main() -> None:
    """Read `{table: {"folder": …, "columns": {column: kind}}}` from stdin, and print `[table, figures]` per table."""
    for table, query in json.load(sys.stdin).items():
        source = f"icebergLocal('{query['folder'].replace(chr(39), chr(39) * 2)}')"
        response = chdb.query(figures(query["columns"], source, dialect="clickhouse"), "JSONCompactEachRow")
        print(json.dumps([table, json.loads(str(response))]), flush=True)


if __name__ == "__main__":
    main()
