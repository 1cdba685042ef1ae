"""The Dagster resources `staging`, the gateways' staging store, and `intake`, the connection for pushes to them.

The staging store is the database to which gateways commit pushes. Assets use the resources; the code location
(`lakesync_dagster.definitions`) creates them.
"""

from contextlib import ExitStack
from functools import partial

import dagster as dg
from pydantic import PrivateAttr

from lakehouse.landing.gateway_intake import OpenIntake, open_intake
from lakehouse.staging_connection import pipeline_store
from lakesync.config import Config
from lakesync.model.hlc import WallClock
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore
from resources.lake import staging_uri


class StagingResource(dg.ConfigurableResource[None]):
    """The gateways' staging store. It is opened when a step first uses it, and closed at the end of the run."""

    uri: str
    """The store's URI without its password, which Dagster's pages show."""
    settings: dg.ResourceDependency[Config]
    _opened: ExitStack = PrivateAttr(default_factory=ExitStack)
    _store: PipelineStore | None = PrivateAttr(default=None)
    _clock: WallClock | None = PrivateAttr(default=None)

    @classmethod
    def configured_by(cls, config: Config) -> "StagingResource":
        """Create the resource from the project's configuration."""
        return cls(uri=staging_uri(config), settings=config)

    @property
    def store(self) -> PipelineStore:
        """The opened store.

        Raises:
            StagingUnavailableError: the store cannot be reached.
        """
        if self._store is None:
            self._store = self._opened.enter_context(pipeline_store(self.settings))
        return self._store

    @property
    def opener(self) -> OpenStaging:
        """A function that opens the store in a Spark task; it raises StagingUnavailableError."""
        return partial(pipeline_store, self.settings)

    def now_ms(self) -> int:
        """Return the server wall time in milliseconds since 1970, by the gateways' clock."""
        if self._clock is None:
            self._clock = WallClock(self.settings.clock_offset_file)
        return self._clock.now_ms()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the store at the end of the run."""
        self._store = None
        self._opened.close()


class IntakeResource(dg.ConfigurableResource[None]):
    """The connection over which polled rows are pushed to gateways, like the deltas of a client."""

    settings: dg.ResourceDependency[Config]

    @classmethod
    def configured_by(cls, config: Config) -> "IntakeResource":
        """Create the resource from the project's configuration."""
        return cls(settings=config)

    @property
    def opener(self) -> OpenIntake:
        """A function that opens the connection, in the step or in a Spark task; it raises StagingUnavailableError."""
        return partial(open_intake, self.settings)
