"""The Dagster resource `pyspark`: a Spark Connect session, and the figures of the jobs that a step runs in it.

All assets and checks use the session. The figures, such as rows and bytes read, come from the REST API of Spark's UI,
because Spark Connect does not report them; the failure policy of assets starts to measure at the beginning of a step,
and reports the figures at its end as metadata.
"""

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
"""Seconds to connect and to read. The first response of Spark's REST API takes three seconds or more."""
_SETTLE_SECONDS = 2.0
"""How long to wait until Spark reports the end of a job. It does so after the job's result has arrived."""
_CHECK_SECONDS = 0.05
"""Seconds between two requests during this wait."""


class JobFigures(NamedTuple):
    """The figures of some Spark jobs, summed. Rows and bytes are those that Spark's readers and writers count."""

    jobs: tuple[int, ...]
    """Ids of the jobs."""
    stages: int
    """Number of stages that ran; stages that were skipped, because their shuffle was reused, do not count."""
    tasks: int
    failed_tasks: int
    rows_read: int
    rows_written: int
    bytes_read: int
    bytes_written: int
    shuffle_bytes: int
    is_complete: bool
    """False if older jobs may be missing, because Spark remembers only `spark.ui.retainedJobs` of them."""


class SparkStatus:
    """The REST API of one Spark application's UI."""

    def __init__(self, ui_url: str, application: str) -> None:
        """Store the API's address.

        Args:
            ui_url: URL of Spark's UI.
            application: id of the Spark application.
        """
        self._root = f"{ui_url.rstrip('/')}/api/v1/applications/{application}"
        self._http = requests.Session()
        self._http.trust_env = False  # no proxy for a server on this machine

    def figures_of(self, tag: str) -> JobFigures | None:
        """Return the figures of the jobs that ran under a tag, once all of them have ended, or after two seconds.

        Args:
            tag: the tag, as given to `SparkSession.addTag`.

        Returns:
            The figures; None if the UI cannot be reached, since a step must not fail because of its figures.
        """
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            jobs = self._get("jobs")
            if jobs is None:
                return None
            tagged = [job for job in jobs if _has_tag(job, tag)]
            if all(job["status"] != "RUNNING" for job in tagged) or time.monotonic() > deadline:
                break
            time.sleep(_CHECK_SECONDS)
        # each stage is requested separately, because the list of all stages has megabytes
        wanted = sorted({stage for job in tagged for stage in job["stageIds"]})
        attempts = [attempt for stage in wanted for attempt in self._get(f"stages/{stage}?details=false") or ()]
        ran = [attempt for attempt in attempts if attempt["status"] != "SKIPPED"]
        ids = sorted(job["jobId"] for job in tagged)
        oldest = min((job["jobId"] for job in jobs), default=0)

        def total(field: str) -> int:
            return sum(attempt[field] for attempt in ran)

        return JobFigures(
            jobs=tuple(ids),
            stages=len({attempt["stageId"] for attempt in ran}),
            tasks=total("numCompleteTasks"),
            failed_tasks=total("numFailedTasks"),
            rows_read=total("inputRecords"),
            rows_written=total("outputRecords"),
            bytes_read=total("inputBytes"),
            bytes_written=total("outputBytes"),
            shuffle_bytes=total("shuffleWriteBytes"),
            # Spark forgets jobs from the oldest on: if it has one from before the tag's first, it has all of the tag
            is_complete=oldest == 0 or not ids or oldest < ids[0],
        )

    def _get(self, path: str) -> list[dict[str, Any]] | None:
        """Return the JSON of a path of the API; None if Spark's UI does not answer."""
        try:
            response = self._http.get(f"{self._root}/{path}", timeout=_TIMEOUT)
            found: list[dict[str, Any]] | None = response.json() if response.ok else None
        except (requests.RequestException, ValueError):
            return None
        return found


class SparkConnectResource(LazyPySparkResource):
    """A Spark Connect session on the server that `lakesync up` starts, or on another one.

    It is created when a step first uses it. Runs share a session if the server's address names one: stopping it then
    only closes this run's connection, and tags distinguish the jobs of steps. `spark_config` shows the server's address
    on Dagster's pages, as `spark.remote`.
    """

    ui_url: str | None = None
    """URL of Spark's UI, whose REST API has the figures of jobs; None for no figures."""
    settings: dg.ResourceDependency[Config]
    """The project's configuration."""
    _session: SparkSession | None = PrivateAttr(default=None)
    _tag: str = PrivateAttr(default="")
    """The tag of the jobs since `start_measuring`."""
    _application: str | None = PrivateAttr(default=None)
    _status: SparkStatus | None = PrivateAttr(default=None)

    @classmethod
    def configured_by(cls, config: Config) -> "SparkConnectResource":
        """Create the resource from the project's configuration."""
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

            self._session = connect(self.settings, shared=True)
            self._application = self._session.conf.get("spark.app.id", None)
            if self.ui_url is not None and self._application is not None:
                self._status = SparkStatus(self.ui_url, self._application)
            self.start_measuring()
        return self._session

    @property
    def application(self) -> str | None:
        """Spark's application id; None before the session is first used."""
        return self._application

    def start_measuring(self) -> None:
        """Start to measure: jobs from now on get a new tag."""
        if self._session is not None:
            self._session.clearTags()
            self._tag = f"step_{uuid.uuid4().hex}"
            self._session.addTag(self._tag)

    def job_figures(self) -> JobFigures | None:
        """Return the figures of the jobs since `start_measuring`; None if Spark's UI cannot be read."""
        return self._status.figures_of(self._tag) if self._status is not None else None

    def renew(self) -> None:
        """Stop the session, which may be lost; the next use creates a new one, or joins the shared one again."""
        session, self._session = self._session, None
        self._application = self._status = None
        if session is not None:
            session.stop()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session at the end of the run."""
        self.renew()


def _has_tag(job: dict[str, Any], tag: str) -> bool:
    """Return whether a job has a tag. Spark Connect prefixes tags with the user and the session."""
    return any(each.endswith(f"_Tag_{tag}") for each in job.get("jobTags", ()))
