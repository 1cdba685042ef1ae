"""What a pipeline's run does to the lake, for processes that are killed in the middle of it."""

from __future__ import annotations

from msgspec.structs import replace

from lakesync import config
from lakesync.schema import parse_schema
from resources.lake.cuts.cutting import make_cut
from resources.lake.history.flush import flush_due
from resources.pipeline import Pipeline


def flush(gateway: str) -> None:
    """Flush what a gateway holds, by the configuration that the environment tells."""
    with Pipeline(config.load()) as pipeline:
        flush_due(pipeline.spark, pipeline.store, gateways=[gateway], names=pipeline.names)


def cut(gateway: str, arrival: int) -> None:
    """Make a cut of the tables `t` and `u` at an arrival."""
    columns = [{"name": "title", "type": "string"}, {"name": "size", "type": "number"}]
    schemas = [parse_schema({"table": table, "columns": columns}) for table in ("t", "u")]
    with Pipeline(config.load()) as pipeline:
        hold = replace(pipeline.store.hold(gateway), arrival=arrival)
        uri = pipeline.checkpoints_uri
        make_cut(pipeline.spark, pipeline.store, hold, schemas, directory_uri=uri, names=pipeline.names)
