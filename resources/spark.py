"""The Dagster resource `pyspark`: a session of Spark Connect, created when a step first uses it."""

import uuid
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr
from pyspark.sql import SparkSession

from lakesync.config import Config
from resources.spark_metrics import SparkStatus, SparkWork


class SparkConnectResource(LazyPySparkResource):
    """A Spark Connect session on the embedded server, on a cluster behind it, or on another server."""

    # Runs share a session where the server's address names one; tags tell the jobs of steps apart.
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
