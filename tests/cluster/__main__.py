"""`python -m tests.cluster`: the assets on a cluster that shares no folder; see `scripts/cluster-demo --help`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lakehouse.sessions import guard_commits
from lakesync import config
from lakesync.cli.commands import examples
from lakesync.cli.up import jars
from lakesync.cli.up.process import Process, accepts, free_ports
from lakesync.cli.up.spark_server import prepare
from lakesync.config.backends import DeclaredDestination
from tests.backend_servers import s3_server
from tests.cluster.play import Play
from tests.cluster.rest_catalogue import rest_catalogue
from tests.cluster.spark_cluster import READY_SECONDS, SparkCluster, spark_cluster
from tests.postgres_server import database, postgres_server

BUCKET = "lake"


def main(
    rows: Annotated[
        int, typer.Option(help="Rows of the table; a task flushes up to 250,000 deltas.", min=250_001)
    ] = 300_000,
    catalogue: Annotated[str, typer.Option(help="rest, or postgres.")] = "rest",
) -> None:
    """Run the assets on a Spark cluster of two workers, over S3, Postgres and a catalogue; kill a worker in a merge.

    The last line is one JSON object; the exit code is 0 only where every check held.
    """
    if catalogue not in {"rest", "postgres"}:
        raise typer.BadParameter(f"--catalogue is {catalogue!r}: choose rest or postgres")
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lakesync-cluster-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        console.print("starting S3 (moto), Postgres, the catalogue, and Spark's master and two workers")
        s3 = _bucket(stack.enter_context(s3_server()))
        os.environ.update(s3)  # for this process, whose asset steps read checkpoint frames
        postgres = stack.enter_context(postgres_server()).uri
        staging, tables, copy = (stack.enter_context(database(postgres)) for _ in range(3))
        home = _pyspark()
        cluster = stack.enter_context(spark_cluster(folder, home, s3))
        warehouse = f"s3://{BUCKET}/warehouse"
        where = tables
        if catalogue == "rest":
            guard_commits(tables)
            where = stack.enter_context(rest_catalogue(tables, s3, warehouse, folder, home))
        settings = _settings(folder, staging, where, cluster, s3["AWS_ENDPOINT_URL"]).model_copy(
            update={"adapters": {"copy": copy}, "destinations": {"copy": DeclaredDestination(to="copy")}}
        )
        stack.enter_context(_driver(settings, cluster, s3))
        with Play(settings, cluster, console) as play:
            report = play.run(rows)
    print(json.dumps({"catalogue": catalogue, "rows": rows, **report}))
    sys.exit(0 if report["ok"] else 1)


def _bucket(endpoint: str) -> dict[str, str]:
    """Create the bucket; return the variables by which every process reaches S3."""
    import boto3

    variables = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "cluster",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.update(variables)
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    return variables


def _settings(folder: Path, staging: str, catalogue: str, cluster: SparkCluster, endpoint: str) -> config.Config:
    port, ui_port = free_ports(2)
    os.environ["LAKESYNC_CONFIG"] = ""
    lake = "spark.sql.catalog.lake"
    return config.load(
        {
            "data_dir": folder / "data",
            "staging": {"url": staging},
            "lake": {
                "catalog_uri": catalogue,
                "warehouse": f"s3://{BUCKET}/warehouse",
                "checkpoints": f"s3://{BUCKET}/checkpoints",
            },
            "spark": {
                "master": cluster.master,
                "remote": f"sc://localhost:{port}",
                "port": port,
                "ui_port": ui_port,
                "ui_url": f"http://127.0.0.1:{ui_port}",
                "token": "cluster-demo",
                "memory": "1g",
                "settings": {
                    "spark.executor.memory": "1g",
                    "spark.executorEnv.JAVA_HOME": str(cluster.java),
                    f"{lake}.s3.endpoint": endpoint,
                    f"{lake}.s3.path-style-access": "true",
                    f"{lake}.client.region": "us-east-1",
                },
            },
        }
    )


@contextmanager
def _driver(settings: config.Config, cluster: SparkCluster, s3: dict[str, str]) -> Iterator[None]:
    """The Spark Connect server, whose driver is the cluster's application; started when both workers are in use."""
    port, token = settings.spark.port, settings.spark.token
    assert token is not None
    server = prepare(settings, port=port, token=token.get_secret_value(), jars=jars.ensure_all(s3=True))
    process = Process("Spark", server.command, {**server.environment, **s3}, settings.data_dir / "spark.log")
    try:
        process.wait_ready(lambda: accepts(port) and cluster.cores_at_work() == 2, timeout=READY_SECONDS)
        yield
    finally:
        process.stop(grace=10)


def _pyspark() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
app.command(
    epilog=examples(
        ("scripts/cluster-demo", "a REST catalogue, and 300,000 rows"),
        ("scripts/cluster-demo --catalogue postgres --rows 500000", "the catalogue's tables in Postgres itself"),
    )
)(main)

if __name__ == "__main__":
    app()
