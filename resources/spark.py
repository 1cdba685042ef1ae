"""The Dagster resource `pyspark`: a session of Spark Connect, created when a step first uses it."""

import time
import uuid
from typing import Any, NamedTuple

import dagster as dg
import requests
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from lakesync.config import Config

_TIMEOUT = (1.0, 15.0)
"""Seconds to connect and to read. The first answer of Spark's REST API takes three, and more on a busy machine."""
_SETTLE_SECONDS = 2.0
"""How long Spark may take to report the end of a job whose result is there already."""
_LOOK_SECONDS = 0.05


class SparkWork(NamedTuple):
    """Jobs of one tag, summed. Rows and bytes are those that Spark's readers, writers and shuffles count."""

    jobs: tuple[int, ...]
    stages: int
    """Stages that ran; a stage whose shuffle was reused is not one."""
    tasks: int
    rows_read: int
    rows_written: int
    bytes_read: int
    bytes_written: int
    shuffle_bytes: int
    failed_tasks: int
    complete: bool
    """False where Spark has forgotten older jobs: `spark.ui.retainedJobs`."""


class SparkStatus:
    """The REST API of one Spark application's UI.

    Every method returns None where the UI cannot be reached: a step does not fail for its figures.
    """

    def __init__(self, ui_url: str, application: str) -> None:
        """Args: ui_url: the UI's address; application: the application's id."""
        self._root = f"{ui_url.rstrip('/')}/api/v1/applications/{application}"
        self._http = requests.Session()
        self._http.trust_env = False  # a proxy does not know this machine's ports

    def work_of(self, tag: str) -> SparkWork | None:
        """Sum the jobs that were run under a tag, once all of them have ended.

        Args:
            tag: as given to `SparkSession.addTag`.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            jobs = self._get("jobs")
            if jobs is None:
                return None
            mine = [job for job in jobs if _is_of(job, tag)]
            if all(job["status"] != "RUNNING" for job in mine) or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        # each stage by itself: a list of all that Spark remembers is megabytes
        wanted = sorted({stage for job in mine for stage in job["stageIds"]})
        attempts = [attempt for stage in wanted for attempt in self._get(f"stages/{stage}?details=false") or ()]
        ran = [attempt for attempt in attempts if attempt["status"] != "SKIPPED"]
        numbers, oldest = sorted(job["jobId"] for job in mine), min((job["jobId"] for job in jobs), default=0)

        def total(*fields: str) -> int:
            return sum(stage[field] for stage in ran for field in fields)

        return SparkWork(
            jobs=tuple(numbers),
            stages=len({stage["stageId"] for stage in ran}),
            tasks=total("numCompleteTasks"),
            rows_read=total("inputRecords"),
            rows_written=total("outputRecords"),
            bytes_read=total("inputBytes"),
            bytes_written=total("outputBytes"),
            shuffle_bytes=total("shuffleWriteBytes"),
            failed_tasks=total("numFailedTasks"),
            complete=oldest == 0 or not numbers or oldest < numbers[0],
        )

    def _get(self, what: str) -> list[dict[str, Any]] | None:
        try:
            answer = self._http.get(f"{self._root}/{what}", timeout=_TIMEOUT)
            found: list[dict[str, Any]] | None = answer.json() if answer.ok else None
        except (requests.RequestException, ValueError):
            return None
        return found


def _is_of(job: dict[str, Any], tag: str) -> bool:
    """Spark Connect writes user and session before a tag."""
    return any(each.endswith(f"_Tag_{tag}") for each in job.get("jobTags", ()))


class SparkConnectResource(LazyPySparkResource):
    """A Spark Connect session on the embedded server, on a cluster behind it, or on another server."""

    # Runs share a session if the server's address names one; tags distinguish the jobs of steps.
    # `spark_config` has the server's address as `spark.remote`, and further settings of the session.
    ui_url: str | None = None
    """Where Spark's UI answers, whose REST API says what Spark did for a step."""
    settings: dg.ResourceDependency[Config]
    _session: SparkSession | None = PrivateAttr(default=None)
    _tag: str = PrivateAttr(default="")
    _application: str | None = PrivateAttr(default=None)
    _status: SparkStatus | None = PrivateAttr(default=None)

    @classmethod
    def configured_by(cls, config: Config) -> "SparkConnectResource":
        """Create the resource of a configuration."""
        remote = config.spark.address
        spark_config = {"spark.remote": remote} if remote is not None else {}
        return cls(spark_config=spark_config, ui_url=config.spark.ui_url, settings=config)

    @property
    def spark_session(self) -> SparkSession:
        """The run's session.

        Raises:
            LakeUnavailableError: Spark cannot be reached.
            ConfigurationError: no Spark is configured.
        """
        if self._session is None:
            from lakehouse.sessions import connect

            self._session = connect(self.settings, self.spark_config, shared=True)
            self._application = self._session.conf.get("spark.app.id", None)
            if self.ui_url is not None and self._application is not None:
                self._status = SparkStatus(self.ui_url, self._application)
            self.start_measuring()
        return self._session

    @property
    def spark_context(self) -> Any:
        """Raises: PySparkAttributeError: Spark Connect has no context."""
        return self.spark_session.sparkContext

    @property
    def application(self) -> str | None:
        """Spark's application id; None before the session is first used."""
        return self._application

    def start_measuring(self) -> None:
        """Start to count the work of jobs, under a new tag."""
        if self._session is not None:
            self._session.clearTags()
            self._tag = f"step_{uuid.uuid4().hex}"
            self._session.addTag(self._tag)

    def work(self) -> SparkWork | None:
        """Return the work of Spark's jobs since `start_measuring`; None if Spark's UI cannot be reached."""
        return self._status.work_of(self._tag) if self._status is not None else None

    def renew(self) -> None:
        """Stop the session, which may be lost; the next use creates another."""
        session, self._session = self._session, None
        self._application = self._status = None
        if session is not None:
            session.stop()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session at the end of the run."""
        self.renew()
