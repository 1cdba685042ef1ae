"""Run by an interpreter with ClickHouse: prints figures of the tables on stdin, one JSON line each."""

from __future__ import annotations

import json
import sys

import chdb  # type: ignore[import-not-found]  # this environment has it, and nothing of LakeSync
from figures import figures  # type: ignore[import-not-found]  # beside this file


def main() -> None:
    """Read `{table: {"folder": …, "columns": {…}}}` and answer table by table."""
    for table, place in json.load(sys.stdin).items():
        source = f"icebergLocal('{place['folder'].replace(chr(39), chr(39) * 2)}')"
        answer = chdb.query(figures(place["columns"], source, dialect="clickhouse"), "JSONCompactEachRow")
        print(json.dumps([table, json.loads(str(answer))]), flush=True)


if __name__ == "__main__":
    main()
