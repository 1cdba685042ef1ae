"""The marks of a lake on the local disk, as the code server reads them every few seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from lakesync import config

TEXTS = ("gateway", "shard", "table_name", "day")
DELTAS = pa.schema([*((name, pa.string()) for name in TEXTS), ("arrival", pa.int64())])
READ_MARKS = """
import json, sys
from lakesync.analysis.lake_marks import MarkReader, snapshots
from lakesync.analysis.lags import StateTable
from lakesync.config import load
from lakesync.staging.records import Backlog

config = load({"data_dir": sys.argv[1]})
backlog = [Backlog("shop", "main", 1, 9, 9, 9 << 16, 0, 0, None, None, checkpoint_arrival=9 << 16)]
found = MarkReader(config).lags(backlog, [StateTable("todos", "tables")], ())
assert snapshots(config, [("tables", "todos")])["tables", "todos"] is not None
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"pyarrow", "pandas", "numpy"})
print(json.dumps([[[lag.key, lag.mark, lag.deltas] for lag in found], heavy]))
"""


def test_reading_marks_does_not_import_pyarrow(tmp_path):
    place = config.load({"data_dir": tmp_path})
    catalogue = SqlCatalog("lake", uri=place.lake.catalog_uri, warehouse=place.lake.warehouse)
    for namespace in ("lakesync", "tables"):
        catalogue.create_namespace(namespace)
    given = {"gateway": "shop", "shard": "main", "table_name": "todos", "day": "1970-01-01"}
    rows = [{**given, "arrival": arrival << 16} for arrival in (5, 7, 9)]
    catalogue.create_table("lakesync.deltas", DELTAS).append(pa.Table.from_pylist(rows, DELTAS))
    state = catalogue.create_table("tables.todos", pa.schema([("_row", pa.string())]))
    state.append(pa.table({"_row": ["t1"]}))
    with state.transaction() as change:
        change.set_properties({"lakesync.merged": json.dumps({"shop": 4 << 16})})
    catalogue.close()

    done = subprocess.run([sys.executable, "-c", READ_MARKS, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[["table/todos/shop", 4 << 16, 3]], []]
