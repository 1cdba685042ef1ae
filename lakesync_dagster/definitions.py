"""The code location. Loading it reads the settings and the schema snapshot, and opens nothing."""

from collections.abc import Iterator
from functools import partial

import dagster as dg

from assets.checks import checks
from assets.cut import cut_and_checkpoint
from assets.external import sources
from assets.flush import history
from assets.tables import state_tables
from lakesync.config import Config, load
from lakesync_dagster.jobs import flush_job, tables_job
from lakesync_dagster.partitions import arrival_days
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot, read_snapshot, snapshot_file
from sensors.failure import failure_sensor
from sensors.flush import flush_sensor
from sensors.schema import schema_sensor


def make_definitions(config: Config, snapshot: SchemaSnapshot) -> dg.Definitions:
    """Everything that Dagster shows and runs, for the tables of a snapshot."""
    days = arrival_days(config.dagster.partitions_start)
    flush = flush_job(config.dagster.max_run_seconds)
    tables = tables_job(config.dagster.max_run_seconds)

    open_pipeline = partial(Pipeline, config)

    def for_a_run(_context: dg.InitResourceContext) -> Iterator[Pipeline]:
        with open_pipeline() as pipeline:
            yield pipeline

    return dg.Definitions(
        assets=[
            *sources(snapshot),
            history(days),
            *state_tables(snapshot, days),
            cut_and_checkpoint(snapshot),
        ],
        asset_checks=checks(snapshot),
        jobs=[flush, tables],
        sensors=[
            flush_sensor(flush, days, open_pipeline),
            schema_sensor(snapshot, open_pipeline),
            failure_sensor(config.dagster.alert_webhook),
        ],
        resources={
            "pipeline": dg.ResourceDefinition(
                for_a_run, description="The staging store, the run's Spark session and the lake's names."
            )
        },
        executor=dg.in_process_executor,
    )


_config = load()
defs = make_definitions(_config, read_snapshot(snapshot_file(_config)))
