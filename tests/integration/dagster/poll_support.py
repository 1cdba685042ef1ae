"""A gateway, Dagster's job `poll` for the connectors registered there, and the results of polls."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from functools import cached_property

import dagster as dg
from pydantic import SecretStr

from lakehouse.landing.polls import PollContext, poll_connector
from lakehouse.schema_snapshot import registered
from lakesync.analysis.marks import report_in
from lakesync.model.delta import extract_delta
from lakesync.model.types import SyncPull, SyncPush
from lakesync_dagster.definitions import make_definitions
from sensors.lags import PipelineLags
from tests.integration.gateway_support import SERVICE
from tests.run_support import a_run

KEY = "the key that seals these tests' secrets"
NUMBERS = itertools.count()


def connection(config, run):
    staging = run.staging
    return PollContext(
        config, run.pyspark.spark_session, run.lake.names, staging.store, staging.now_ms, run.intake.opener
    )


class House:
    """A gateway, and Dagster's job `poll` for the connectors registered there."""

    def __init__(self, served, spark_config, instance, name):
        self.engine, self.instance, self.gateway = served.engine, instance, served.engine.gateway(name)
        self.closing, self.cursor = ExitStack(), None
        self.config = spark_config.replace(
            lake={"system_namespace": f"sys_{name}", "namespace": f"tab_{name}"},
            gateway={"url": served.url},
            service_token=SecretStr(SERVICE),
            connectors={"allowed_hosts": ("127.0.0.1",)},
            secret_key=SecretStr(KEY),
        )

    def register(self, config, **ingest):
        body = {"name": config.name, "type": config.type, config.type: dict(config.settings), "ingest": ingest}
        self.gateway.register_connector(body)

    def run(self, connector, *, by_sensor=True, **config):
        snapshot = registered(self.engine.store)
        definitions = make_definitions(self.config, snapshot)
        found = next(
            each for each in snapshot.connectors if (each.gateway, each.name) == (self.gateway.gateway_id, connector)
        )
        keys = [dg.AssetKey(["ingest", found.gateway, found.name, table]) for table in found.tables]
        return definitions.resolve_job_def("poll").execute_in_process(
            instance=self.instance,
            partition_key=time.strftime("%Y-%m-%d", time.gmtime()),
            tags={"lakesync/requested_by": "poll_sensor"} if by_sensor else {},
            asset_selection=keys,
            run_config=config,
            raise_on_error=False,
        )

    def tick(self):
        """Tick the poll sensor and run what it requests; each polled table, and whether it succeeded."""
        definitions = make_definitions(self.config, registered(self.engine.store))
        sensor, found = definitions.get_repository_def().get_sensor_def("poll_sensor"), {}
        with dg.build_sensor_context(self.instance, cursor=self.cursor) as context:
            result = sensor(context)
        if isinstance(result, dg.SkipReason):
            return found
        self.cursor = result.cursor
        for request in result.run_requests:
            run = definitions.resolve_job_def("poll").execute_in_process(
                instance=self.instance,
                partition_key=request.partition_key,
                tags=request.tags,
                asset_selection=request.asset_selection,
                raise_on_error=False,
            )
            found |= {key.path[-1]: key.path[-1] in metadata_of(run) for key in request.asset_selection}
        return found

    def behind(self):
        """The keys of the polls that are reported as behind."""
        lags = PipelineLags(self.config, registered(self.engine.store))
        lags.read(self.engine.store, lambda: self.instance)
        return {lag.key for lag in report_in(self.engine.store.marks()).lags if lag.part == "poll"}

    def poll(self, connector):
        """A poll without Dagster; all polls of a house share one Spark session."""
        return poll_connector(connection(self.config, self.given), self.gateway.gateway_id, connector)

    @cached_property
    def given(self):
        """The resources of a run."""
        return self.closing.enter_context(a_run(self.config))

    def close(self):
        """Stop the session."""
        self.closing.close()

    def rows(self, table, client="reader"):
        """Return a table's rows as a client pulls them, and how often each is sent."""
        rows = {}
        cursor, more = 0, True
        while more:
            page = self.gateway.handle_pull(SyncPull(f"{client}-{time.monotonic_ns()}", cursor, 10_000))
            for delta in page.deltas:
                if delta.table == table and delta.op != "DELETE":
                    rows.setdefault(delta.row_id, {}).update({cell.column: cell.decoded() for cell in delta.columns})
            cursor, more = page.server_hlc, page.has_more
        return rows

    def edit(self, table, row_id, **columns):
        """Push a client's edit."""
        stamp = time.time_ns() // 1_000_000 << 16
        delta = extract_delta(dict.fromkeys(columns), columns, table=table, row_id=row_id, client_id="c", hlc=stamp)
        self.gateway.handle_push(SyncPush("c", (delta,)))

    def logged(self):
        """The deltas that the gateway has accepted."""
        return sum(day.count for day in self.engine.store.ledger(self.gateway.gateway_id))


def metadata_of(run):
    """Each table's metadata, as plain values."""
    return {
        event.asset_key.path[-1]: {
            name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in run.get_asset_materialization_events()
    }


def reason(run):
    return next(event.event_specific_data.error.message for event in run.all_events if event.is_step_failure)
