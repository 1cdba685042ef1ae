"""The metadata of a step's materialisations about Spark's work, read from Spark's REST API."""

import dagster as dg
import pytest
import requests

from assets.failure_policy import failure_policy
from lakesync.cli.up.process import free_ports
from resources.spark import SparkConnectResource
from tests.run_support import a_run, resources_of

ROWS, PARTITIONS = 1_000, 4


def counted(spark):
    """Run at most two jobs over this number of partitions."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id % 7 AS k").groupBy("k").count().collect()


def test_the_work_of_a_session_is_counted_separately(spark_server):
    with a_run(spark_server["config"]) as one, a_run(spark_server["config"]) as other:
        counted(other.pyspark.spark_session)
        counted(one.pyspark.spark_session)
        one.pyspark.start_measuring()
        counted(other.pyspark.spark_session)
        assert one.pyspark.job_figures().jobs == ()
        counted(one.pyspark.spark_session)
        work, of_other = one.pyspark.job_figures(), other.pyspark.job_figures()
    assert work.rows_read == ROWS
    assert work.tasks > PARTITIONS
    assert work.shuffle_bytes > 0
    assert work.failed_tasks == 0
    assert work.is_complete
    assert of_other.rows_read == 2 * ROWS
    assert not set(work.jobs) & set(of_other.jobs)


def test_rows_that_spark_writes_are_counted(spark_server):
    with a_run(spark_server["config"]) as run:
        spark = run.pyspark.spark_session
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.measured")
        spark.sql("CREATE TABLE lake.measured.numbers (id bigint) USING iceberg")
        run.pyspark.start_measuring()
        spark.range(0, ROWS, 1, PARTITIONS).writeTo("lake.measured.numbers").append()
        work = run.pyspark.job_figures()
        spark.sql("DROP TABLE lake.measured.numbers PURGE")
    assert (work.rows_written, work.tasks, len(work.jobs)) == (ROWS, PARTITIONS, 1)
    assert work.bytes_written > 0


def test_a_materialisation_has_the_figures_of_its_own_step(spark_server):
    @dg.asset
    def first(context: dg.AssetExecutionContext, pyspark: SparkConnectResource):
        with failure_policy(context, pyspark):
            counted(pyspark.spark_session)
        return dg.MaterializeResult(metadata={"rows": 7})

    @dg.asset(deps=[first])
    def idle(context: dg.AssetExecutionContext, pyspark: SparkConnectResource):
        with failure_policy(context, pyspark):
            pass

    @dg.asset
    def without(context: dg.AssetExecutionContext):
        with failure_policy(context):
            pass

    done = dg.materialize([first, idle, without], resources=resources_of(spark_server["config"]))
    metadata = {
        event.step_key: event.step_materialization_data.materialization.metadata
        for event in done.get_asset_materialization_events()
    }
    figures = {name: value.value for name, value in metadata["first"].items()}
    assert figures["engine"] == "spark"
    assert figures["spark/rows_read"] == ROWS
    assert figures["spark/tasks"] > PARTITIONS
    assert figures["rows"] == 7
    ui = spark_server["config"].spark.ui_url
    known = {each["id"] for each in requests.get(f"{ui}/api/v1/applications", timeout=60).json()}
    assert figures["spark/application"] in known
    job = figures["spark/ui"].rpartition("(")[2].rstrip(")")
    assert "Details for Job" in requests.get(job, timeout=60).text
    assert metadata["idle"]["engine"].value == "none"
    assert "engine" not in metadata["without"]


@pytest.mark.parametrize("reachable", [None, "nobody"])
def test_a_step_succeeds_if_sparks_pages_are_unreachable(spark_server, reachable):
    url = None if reachable is None else f"http://127.0.0.1:{free_ports(1)[0]}"

    @dg.asset
    def table(context: dg.AssetExecutionContext, pyspark: SparkConnectResource):
        with failure_policy(context, pyspark):
            counted(pyspark.spark_session)

    done = dg.materialize([table], resources=resources_of(spark_server["config"].replace(spark={"ui_url": url})))
    (made,) = done.asset_materializations_for_node("table")
    assert made.metadata["engine"].value == "spark"
    assert made.metadata["spark/application"].value
    assert "spark/jobs" not in made.metadata


def test_sparks_pages_are_read_only_on_loopback_and_hide_passwords(spark_server):
    config = spark_server["config"]
    with a_run(config) as run:
        application = run.pyspark.spark_session.conf.get("spark.app.id")
    found = requests.get(f"{config.spark.ui_url}/api/v1/applications/{application}/environment", timeout=60).json()
    settings = dict(found["sparkProperties"])
    assert settings["spark.ui.killEnabled"] == "false"
    assert "spark.sql.catalog.spare.credential" in settings
    assert "never-shown" not in str(found)
    assert config.spark.token.get_secret_value() not in str(found)
