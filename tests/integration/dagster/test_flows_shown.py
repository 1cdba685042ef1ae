"""Both flows of the overview, as assets and end to end, and a client's filtered copy.

Some rows of BigQuery (an emulator) are copied to Postgres, and the deltas of Postgres to the lake, through a real
gateway. An app pulls some rows of BigQuery into its SQLite database, through that gateway's rules.
"""

import time

import dagster as dg
import pytest
from pydantic import SecretStr

from assets.names import REQUESTED_BY, TRANSFER_SENSOR
from lakehouse.history.flush import flush_backlog
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.adapters import DeltaBatch, StoredDelta
from lakesync.adapters.backends.bigquery import BigQueryAdapter
from lakesync.adapters.backends.postgres import PostgresAdapter
from lakesync.client import open_client
from lakesync.config.backends import DeclaredFlow
from lakesync.model.schema import parse_schema
from lakesync_dagster.definitions import make_definitions
from tests.conformance.adapter_places import bigquery_uri, start_server
from tests.conformance.book import make_delta
from tests.conformance.test_adapters import everything
from tests.integration.gateway_support import SERVICE, sign
from tests.run_support import a_run

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

FLIGHTS = {
    "table": "flights",
    "columns": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "number"}],
}
RULES = {
    "version": 1,
    "buckets": [
        {"name": "late", "tables": ["flights"], "filters": [{"column": "delay", "op": "gte", "value": "jwt:at_least"}]}
    ],
}


@pytest.fixture
def analytics(request, tmp_path):
    """The URI of a dataset with deltas of six flights, of which three are American's."""
    request.param = "bigquery"
    start_server(request)
    uri = bigquery_uri(tmp_path)
    adapter = BigQueryAdapter(uri)
    made = [
        make_delta("etl", n, f"f{n}", table="flights", carrier=("AA", "UA")[n % 2], delay=10 * n) for n in range(1, 7)
    ]
    stored = tuple(StoredDelta("elsewhere", 256 * n, delta) for n, delta in enumerate(made, 1))
    adapter.insert_deltas(DeltaBatch("elsewhere.main.1.1-6", "elsewhere", stored))
    adapter.close()
    return uri


def test_both_flows_of_the_overview_deliver_their_rows(analytics, own_database, spark_server, spawn, tmp_path):
    (tmp_path / "declared.toml").write_text(
        f'[adapters]\nbigquery = "{analytics}"\n[sources]\nanalytics = {{ uri = "bigquery", gateway = "elsewhere" }}\n',
        "utf-8",
    )
    served = spawn(LAKESYNC_CONFIG=str(tmp_path / "declared.toml"))
    admin = served.client("admin", "home").admin()
    assert admin.call("POST", "/admin/schema/{gw}", json=FLIGHTS).status_code == 200
    lake = {"system_namespace": "sys_shown", "namespace": "tab_shown"}
    config = spark_server["config"].replace(
        data_dir=tmp_path, lake=lake, gateway={"url": served.url}, service_token=SecretStr(SERVICE)
    )
    american = ({"column": "carrier", "op": "eq", "value": "AA"},)
    config = config.model_copy(
        update={
            "adapters": {"bigquery": analytics, "postgres": own_database},
            "flows": {
                "american": DeclaredFlow(source="bigquery", to="postgres", tables=("flights",), where=american),
                "home": DeclaredFlow(source="postgres", to="lake", into="home"),
            },
        }
    )
    definitions = make_definitions(config, SchemaSnapshot((parse_schema(FLIGHTS),), {"flights": ("home",)}))

    def run(job):
        with dg.DagsterInstance.ephemeral() as instance:
            tags = {"dagster/partition": time.strftime("%Y-%m-%d", time.gmtime()), REQUESTED_BY: TRANSFER_SENSOR}
            done = definitions.resolve_job_def(job).execute_in_process(instance=instance, tags=tags)
        (event,) = done.get_asset_materialization_events()
        metadata = event.step_materialization_data.materialization.metadata
        return metadata["scanned"].value, metadata["deltas_in"].value

    assert run("flows_american") == (6, 3)
    there = PostgresAdapter(own_database)
    with there._executor.connect() as sql:
        assert sql.query("SELECT row_id, carrier, delay FROM flights ORDER BY row_id") == [
            (f"f{n}", "AA", 10 * n) for n in (2, 4, 6)
        ]
    assert {stored.delta.row_id for stored in everything(there)} == {"f2", "f4", "f6"}
    there.close()

    assert run("flows_home") == (3, 3), served.log.read_text()
    (tmp_path / "flows" / "home.json").unlink()  # its position is lost, so it restarts
    assert run("flows_home") == (3, 3)
    with a_run(config) as given:
        spark = given.pyspark.spark_session
        flush_backlog(spark, given.staging.store, names=given.lake.names)
        found = spark.table(given.lake.names.deltas).select("gateway", "row_id", "client_id", "hlc").collect()
    assert sorted(map(tuple, found)) == [("home", f"f{n}", "etl", n) for n in (2, 4, 6)]

    assert admin.call("POST", "/admin/sync-rules/{gw}", json=RULES).status_code == 200
    token = sign("me", "home", at_least="45")
    app = open_client(tmp_path / "app.db", url=served.url, gateway="home", token=token, schemas=[FLIGHTS])
    app.coordinator.pull_from("analytics")
    assert [(row["row_id"], row["carrier"], row["delay"]) for row in app["flights"].rows()] == [
        ("f5", "UA", 50),
        ("f6", "AA", 60),
    ]
    app.close()
