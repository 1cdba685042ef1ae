"""The lake operations of a pipeline run, for processes that are killed during them."""

from __future__ import annotations

from msgspec.structs import replace

from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.history.flush import flush_backlog
from lakesync import config
from lakesync.model.schema import parse_schema
from tests.run_support import a_run


def flush(gateway: str) -> None:
    """Flush a gateway's deltas, with the configuration of the environment."""
    with a_run(config.load()) as run:
        flush_backlog(run.pyspark.spark_session, run.staging.store, gateways=[gateway], names=run.lake.names)


def checkpoint(gateway: str, arrival: int) -> None:
    """Create a checkpoint of the tables `t` and `u` at an arrival."""
    columns = [{"name": "title", "type": "string"}, {"name": "size", "type": "number"}]
    schemas = [parse_schema({"table": table, "columns": columns}) for table in ("t", "u")]
    with a_run(config.load()) as run:
        spark, store = run.pyspark.spark_session, run.staging.store
        hold = replace(store.cut_point(gateway), arrival=arrival)
        uri = run.lake.checkpoints_uri
        make_checkpoint(spark, store, hold, schemas, directory_uri=uri, names=run.lake.names)
