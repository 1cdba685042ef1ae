"""Rows per second of a connector's first poll, from its source through the table `landing` into a gateway.

The source is a fake server (`lakesync fake`). The source, the gateway and Spark have processes of their own. `peak_mib`
is the memory of this process, which polls as a Dagster run does, `spark_peak_mib` that of Spark with its workers. A
*page* is what the connector reads in one step; a *landing* stores the rows of some pages in the table `landing`.
`plain_rate` is the rate of reading the same pages with the connector and discarding them. `calls` can be compared with
the minimum, `calls_needed`. Figures with `idle_` are those of a second poll, which finds nothing new.
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
from benchmarks.suite import Benchmark
from benchmarks.usage import MeasuredProcess, Usage
from lakehouse.landing.polls import ConnectorPoll, PollContext, poll_connector
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
"""Lets connectors call this machine."""
_ALONE = {
    "jira": {"includeComments": False},
    "salesforce": {"includeContacts": False, "includeOpportunities": False, "includeLeads": False},
}
"""Settings by which a connector polls a single table."""
_TABLES = {"jira": "jira_issues", "salesforce": "sf_accounts"}
"""Connector type → the table that it polls."""
_OPTIONS = {"jira": "--issues", "salesforce": "--accounts"}
"""Connector type → the option of `lakesync fake` for the number of rows."""
_READY_SECONDS = 600
"""Longest time for the fake server to create its rows."""


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--source", choices=sorted(_TABLES), default="salesforce")
    parser.add_argument("--rows", type=int, default=50_000, help="issues or accounts to poll")
    parser.add_argument("--budget-mib", type=int, default=16, help="the connector's memoryBudgetBytes, in MiB")
    parser.add_argument("--chunk", type=int, default=500, help="the connector's chunkSize")
    parser.add_argument("--memory", default="3g", help="heap of Spark's JVM")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    variables = {
        "LAKESYNC_SERVICE_TOKEN": _SERVICE,
        "LAKESYNC_SECRET_KEY": _KEY,
        "LAKESYNC_CONNECTORS_ALLOWED_HOSTS": '["127.0.0.1"]',
    }
    with (
        _fake(options.source, options.rows) as connector,
        server.temporary_folder(options.folder) as folder,
        server.gateway(folder, **variables) as gateway,
        lake(folder / "lake", options.memory) as bench,
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
        with dg.build_resources(run_resources(config)) as resources:
            context = PollContext(
                config,
                resources.pyspark.spark_session,
                resources.stores.names,
                resources.staging.store,
                resources.staging.now_ms,
                resources.intake.opener,
            )
            first, used, spark = _poll(context, connector["name"], bench)
            again, idle, idle_spark = _poll(context, connector["name"], bench)
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


def _poll(context: PollContext, name: str, bench: Lake) -> tuple[ConnectorPoll, Usage, Usage]:
    """Run a poll and measure this process and Spark."""
    with MeasuredProcess(os.getpid()).measure() as used, bench.spark_process.measure() as spark:
        done = poll_connector(context, server.GATEWAY, name)
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
    if rows <= BULK_ROWS:  # sign-in, count of the rows, and the pages
        return 2 + -(-rows // 2_000)
    # sign-in, count of the rows, creation of the bulk job, one read of its state, and the parts of its result
    return 2 + 1 + 1 + -(-rows // RECORDS_PER_PAGE)


@contextmanager
def _fake(source: str, rows: int) -> Iterator[dict[str, Any]]:
    """Start a fake server, and yield the settings of a connector to it."""
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


BENCHMARKS = (Benchmark("polls", __doc__, arguments, run),)
