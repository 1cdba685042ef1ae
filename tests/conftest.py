"""Servers that the tests share; each is started once, when the first test requests it."""

import gc
import os
import secrets
import shutil
import signal
import sys
import uuid

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql.connect.client import SparkConnectClient

from lakesync import config
from lakesync.cli.up.process import free_ports
from tests.backend_servers import SparkServer, bigquery_server, mariadb_server, s3_server, strict_s3_server
from tests.deepened import deepen
from tests.parallel import Rooms, place
from tests.postgres_server import database, postgres_server

# In a Spark server that runs for minutes, the C2 compiler takes half of the CPU time, for code that runs once. To
# verify the bytecode of Spark's 24,000 classes takes a seventh of the CPU time until the first queries are done.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
# `lakesync up` starts Spark with a small heap, which a busy Spark enlarges by one collection after another.
os.environ.setdefault("_JAVA_OPTIONS", "-Xms384m -Xmn256m")

# A shell starts background jobs with SIGINT ignored. Dagster gives SIGTERM the same handler, and children inherit
# both. Servers that tests stop would then not end before they are killed, 15 seconds later.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example depends on the load of the machine, and must not decide a test.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
# `--hypothesis-profile soak` searches much longer for a failing example.
settings.register_profile("soak", max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))


FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.cleaner.periodicGC.interval": "1h",
}
"""Settings of the shared Spark. For a few rows, compiling Java code takes longer than it saves.

`lakesync up` in `tests/e2e` has the settings of users."""

SQLITE = ("tests/unit/", "tests/property/")
"""Folders whose tests must close SQLite connections too, which Python reports from 3.13 on.

The other folders have run with 3.11 only."""


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: place(item.nodeid))
    for item in items:
        if not item.nodeid.startswith(SQLITE):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"))
    if config.getoption("--hypothesis-profile") == "soak":
        for item in items:
            deepen(item)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let each worker import a folder's files in a different order.

    In a new checkout, all workers would otherwise compile the same files at the same time.
    `pytest_collection_modifyitems` sorts the tests, because their order must be the same in all workers.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory) and report.passed:
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude the 700,000 objects of the imported tests from garbage collection; they live as long as the run.

    Otherwise each full collection takes half a second, and `closes_everything` has two of them a module.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_xdist_make_scheduler(config, log):
    return Rooms(config, log)


@pytest.fixture(scope="module", autouse=True)
def closes_everything():
    """Fail a module if the collector finds something open, or a finaliser raises. This replaces pytest's plugin.

    A failure names the test during which the collector ran; an earlier test may have left the object.
    `python -X tracemalloc=20` shows where a file or a socket was opened.
    """
    gc.collect()  # collect the garbage of other modules
    gc.freeze()  # surviving objects live as long as the run, and would slow down the next collection
    found = []

    def note(each):
        found.append(f"{os.environ['PYTEST_CURRENT_TEST']}: {each.err_msg or each.object!r}: {each.exc_value!r}")

    before, sys.unraisablehook = sys.unraisablehook, note
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def spark_config(tmp_path_factory):
    """The configuration of the shared Spark server and its lake."""
    port, ui_port = free_ports(2)
    shared = f"sc://localhost:{port}/;session_id={uuid.uuid4()}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
            patch.delenv(name)
        patch.setenv("LAKESYNC_CONFIG", "")
        return config.load(
            {
                "data_dir": tmp_path_factory.mktemp("lake"),
                "spark": {
                    "remote": shared,
                    "port": port,
                    "ui_port": ui_port,
                    "ui_url": f"http://127.0.0.1:{ui_port}",
                    "token": secrets.token_urlsafe(16),
                    "settings": {"spark.sql.catalog.spare.credential": "never-shown", **FEW_ROWS},
                },
            }
        )


@pytest.fixture(scope="session")
def spark_server_process(spark_config):
    """The embedded Spark Connect server; a test that stops it must start it again."""
    # At exit, an unclosed client retries its server for ten minutes, although the server has stopped.
    SparkConnectClient._cleanup_ml_cache = lambda _: None
    server = SparkServer(spark_config)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def spark_server(spark_config, spark_server_process):
    """The address and settings for clients of the shared Spark server, as plain values."""
    return {
        "remote": f"sc://localhost:{spark_config.spark.port}",
        "token": spark_config.spark.token.get_secret_value(),
        "warehouse": spark_config.lake.warehouse,
        "catalog_uri": spark_config.lake.catalog_uri,
        "config": spark_config,
    }


@pytest.fixture(scope="session")
def shared_postgres():
    """A Postgres that listens on TCP, which JDBC needs; a test that restarts it leaves it running."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_uri(shared_postgres):
    """The address of the shared Postgres and its only database, `postgres`."""
    return shared_postgres.uri


@pytest.fixture(scope="session")
def shared_mariadb():
    """A shared MariaDB; a test that stops it must start it again."""
    if shutil.which("mariadbd") is None:
        pytest.skip("MariaDB (mariadbd) is not installed; scripts/install --dev installs it where apt-get is permitted")
    with mariadb_server() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_uri(shared_mariadb):
    """The address of the shared MariaDB, without a database."""
    return shared_mariadb.uri


@pytest.fixture(scope="session")
def s3_endpoint():
    """The address of a shared S3 that accepts any credentials."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def strict_s3_endpoint():
    """The address of a shared S3 that checks keys; only for deep tests, because Go must build it first."""
    if shutil.which("go") is None:
        pytest.skip("versitygw cannot be built because Go is not installed")
    with strict_s3_server() as server:
        yield server.endpoint


@pytest.fixture(scope="session")
def bigquery_endpoint():
    """The address of a shared emulator of BigQuery."""
    with bigquery_server() as server:
        yield server.endpoint


@pytest.fixture
def own_database(postgres_uri):
    """A database of the test's own on the shared server."""
    with database(postgres_uri) as url:
        yield url


@pytest.fixture(scope="module")
def module_database(postgres_uri):
    """A database of the module's own on the shared server."""
    with database(postgres_uri) as url:
        yield url
