"""A Spark standalone cluster on one machine: a master and one-core workers, each with a separate folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import requests

from lakesync.cli.up.process import Process, accepts, free_ports
from lakesync.cli.up.spark_server import java_home

READY_SECONDS = 240
WORKER_MEMORY = "1200m"
_SHIM = """\
#!/bin/bash
# Spark gives its executors a module that a small Java lacks, and that nothing here needs.
kept=()
for argument in "$@"; do [[ $argument == --add-modules=jdk.incubator.vector ]] || kept+=("$argument"); done
exec {java} "${{kept[@]}}"
"""


class SparkCluster:
    """A cluster; `start` starts it."""

    def __init__(self, folder: Path, home: Path, environment: Mapping[str, str]) -> None:
        """Args: folder: for its files; home: pyspark's; environment: of the workers, for example S3's keys."""
        self._folder, self._home = folder, home
        (port, self._pages) = free_ports(2)
        self.master = f"spark://127.0.0.1:{port}"
        self.java = _java(folder)
        self._environment = {
            **environment,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "JAVA_HOME": str(self.java),
        }
        self._port = port
        self._processes: dict[str, Process] = {}

    def start(self) -> None:
        """Start the master, then the workers, and wait for all of them."""
        where = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._pages)]
        master = self._start("master.Master", "master", where)
        master.wait_ready(lambda: accepts(self._port) and accepts(self._pages), timeout=READY_SECONDS)
        for name in ("worker-1", "worker-2"):
            size = ["-c", "1", "-m", WORKER_MEMORY, "-d", str(self._folder / name), "--webui-port", "0"]
            self._start("worker.Worker", name, ["--host", "127.0.0.1", *size, self.master])
        master.wait_ready(lambda: self.workers() == 2, timeout=READY_SECONDS)

    def workers(self) -> int:
        """The number of live workers."""
        return self._status().get("aliveworkers", 0)

    def cores_at_work(self) -> int:
        """The number of cores that applications use."""
        return self._status().get("coresused", 0)

    def kill(self, worker: str) -> None:
        """Kill a worker and its executor, as a power cut would."""
        self._processes[worker].signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop every process of the cluster."""
        for process in self._processes.values():
            process.stop(grace=5)

    def _status(self) -> dict[str, int]:
        """Return the master's status; empty while the master is starting."""
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(f"http://127.0.0.1:{self._pages}/json/", timeout=10)
        return dict(answer.json()) if "json" in answer.headers.get("Content-Type", "") else {}

    def _start(self, what: str, name: str, options: list[str]) -> Process:
        command = [str(self.java / "bin" / "java"), "-Xmx192m", "-cp", str(self._home / "jars" / "*")]
        main = f"org.apache.spark.deploy.{what}"
        log = self._folder / f"{name}.log"
        self._processes[name] = Process(name, [*command, main, *options], self._environment, log)
        return self._processes[name]


@contextmanager
def spark_cluster(folder: Path, home: Path, environment: Mapping[str, str]) -> Iterator[SparkCluster]:
    """Start a cluster, and stop it at the end."""
    cluster = SparkCluster(folder, home, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _java(folder: Path) -> Path:
    """Return a JAVA_HOME whose `java` accepts every flag that Spark passes."""
    home = folder / "java"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_SHIM.format(java=java_home() / "bin" / "java"), "utf-8")
    program.chmod(0o755)
    (home / "lib").symlink_to(java_home() / "lib")
    return home
