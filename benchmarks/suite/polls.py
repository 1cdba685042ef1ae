"""Rows per second of a connector's first load, from its source through the landing into a gateway, and its memory.

The source is `lakesync fake` in its own process, the gateway another, Spark a third. `peak_mib` is this process, which
polls as Dagster does, `spark_peak_mib` Spark with its workers. Then an idle poll, and the number of calls made compared
with the minimum. `plain_rate` is the rate of reading the same pages with the connector's client and discarding them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import dagster as dg
import requests
from pydantic import SecretStr

from benchmarks import server
from benchmarks.lake import Lake, lake
from benchmarks.usage import Usage, Watched
from lakehouse.landing.polls import Connection, ConnectorPoll, poll_connector
from lakesync.connectors import Connectors, Secrets
from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.jira.api import PAGE
from lakesync.connectors.salesforce.api import RECORDS_PER_PAGE
from lakesync.connectors.salesforce.source import BULK_ROWS
from lakesync_dagster.definitions import run_resources

_SERVICE = "the token of the benchmark's pipeline"
_KEY = "the key of the benchmark's connectors' secrets"
_HOSTS = HostPolicy(("127.0.0.1",))
_ALONE = {
    "jira": {"includeComments": False},
    "salesforce": {"includeContacts": False, "includeOpportunities": False, "includeLeads": False},
}
_TABLES = {"jira": "jira_issues", "salesforce": "sf_accounts"}
_OPTIONS = {"jira": "--issues", "salesforce": "--accounts"}
_READY_SECONDS = 600


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--source", choices=sorted(_TABLES), default="salesforce")
    parser.add_argument("--rows", type=int, default=50_000, help="issues, or accounts")
    parser.add_argument("--budget-mib", type=int, default=16, help="memoryBudgetBytes of its ingest")
    parser.add_argument("--chunk", type=int, default=500, help="chunkSize of its ingest")
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    variables = {
        "LAKESYNC_SERVICE_TOKEN": _SERVICE,
        "LAKESYNC_SECRET_KEY": _KEY,
        "LAKESYNC_CONNECTORS_ALLOWED_HOSTS": '["127.0.0.1"]',
    }
    with (
        _fake(options.source, options.rows) as connector,
        server.folder(options.folder) as place,
        server.gateway(place, **variables) as gateway,
        lake(place / "lake", options.memory) as bench,
    ):
        url = f"http://127.0.0.1:{gateway.port}"
        ingest = {"chunkSize": options.chunk, "memoryBudgetBytes": options.budget_mib << 20}
        settings = connector[options.source] | _ALONE[options.source]
        body = connector | {options.source: settings, "ingest": ingest}
        headers = {"Authorization": f"Bearer {server.token('admin')}"}
        requests.post(
            f"{url}/admin/connectors/{server.GATEWAY}", json=body, headers=headers, timeout=60
        ).raise_for_status()
        config = bench.config.replace(
            gateway={"url": url},
            service_token=SecretStr(_SERVICE),
            secret_key=SecretStr(_KEY),
            connectors={"allowed_hosts": _HOSTS.allowed},
        )
        with dg.build_resources(run_resources(config)) as given:
            connection = Connection(
                config,
                given.pyspark.spark_session,
                given.lake.names,
                given.staging.store,
                given.staging.now_ms,
                given.intake.opener,
            )
            first, used, spark = _poll(connection, connector["name"], bench)
            again, idle, idle_spark = _poll(connection, connector["name"], bench)
        plain = _plain_rate(options.source, settings)
    read = next(each for each in first.tables if each.table == _TABLES[options.source])
    rows, report = read.delivered.inserted, read.read
    assert report is not None
    idle_rows = sum(each.read.rows for each in again.tables if each.read is not None)
    return {
        "source": options.source,
        "rows": rows,
        "seconds": used.seconds,
        "rate": round(rows / used.seconds),
        "plain_rate": plain,
        "ratio": round(rows / used.seconds / plain, 3),
        "pages": report.pages,
        "landings": report.landings,
        "read_and_landed_seconds": round(first.report.seconds, 2),
        "cpu_us_per_row": round(used.cpu_seconds / rows * 1e6, 1),
        "begin_mib": used.rss_begin_mib,
        "peak_mib": used.rss_peak_mib,
        "spark_peak_mib": spark.rss_peak_mib,
        "spark_cpu_us_per_row": round(spark.cpu_seconds / rows * 1e6, 1),
        "calls": first.report.usage.calls,
        "calls_needed": _needed(options.source, options.rows),
        "waited_s": read.delivered.waited_s,
        "idle_seconds": idle.seconds,
        "idle_calls": again.report.usage.calls,
        "idle_cpu_seconds": idle.cpu_seconds,
        "idle_spark_cpu_seconds": idle_spark.cpu_seconds,
        "idle_rows": idle_rows,
        "idle_deltas": sum(each.delivered.deltas for each in again.tables),
    }


def _poll(connection: Connection, name: str, bench: Lake) -> tuple[ConnectorPoll, Usage, Usage]:
    """Run a poll and measure this process and Spark."""
    with Watched(os.getpid()).measured() as used, bench.watched.measured() as spark:
        done = poll_connector(connection, server.GATEWAY, name)
    for error in done.errors:
        raise error
    return done, used[0], spark[0]


def _plain_rate(source: str, settings: Mapping[str, Any]) -> int:
    """Return the rows per second of reading the same pages without storing them."""
    kind = Connectors(Secrets([_KEY])).find(source)
    assert kind is not None
    begun, rows = time.monotonic(), 0
    with closing(kind.open_source(ConnectorConfig(server.GATEWAY, "plain", source, settings, hosts=_HOSTS))) as pages:
        for page in pages.changes(_TABLES[source], None):
            rows += len(page.rows)
    return round(rows / (time.monotonic() - begun))


def _needed(source: str, rows: int) -> int:
    """Return the minimum number of calls for the rows."""
    if source == "jira":
        return -(-rows // PAGE) + 1
    if rows <= BULK_ROWS:
        return 2 + -(-rows // 2_000)
    return 2 + 1 + 1 + -(-rows // RECORDS_PER_PAGE)  # sign in, count, begin, one look whether it is done, its pieces


@contextmanager
def _fake(source: str, rows: int) -> Iterator[dict[str, Any]]:
    """Return a connector to the running fake server."""
    command = [sys.executable, "-c", "from lakesync.cli import main; main()", "fake", source, "--json"]
    process = subprocess.Popen([*command, _OPTIONS[source], str(rows)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        begun = time.monotonic()
        line = process.stdout.readline()
        if not line or time.monotonic() - begun > _READY_SECONDS:
            raise RuntimeError(f"lakesync fake {source} did not start")
        yield json.loads(line)["connector"]
    finally:
        process.terminate()
        process.wait(60)
