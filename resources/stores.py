"""The Dagster resources `lake`, `staging` and `intake`, with which assets reach the pipeline's stores.

`lake` has the names and locations of the Iceberg tables. `staging` opens the database to which gateways (streams of
changes, one for each app) commit what clients push. `intake` opens the way by which rows that are polled from external
systems are pushed to gateways. Functions build the URIs of tables, folders and stores, for the metadata of assets. The
code location (`lakesync_dagster.definitions`) creates the resources from the project's configuration.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import dagster as dg
from pydantic import PrivateAttr

from lakehouse.gateway_connections import OpenIntake, open_intake, pipeline_store
from lakehouse.table_definitions import LakeNames
from lakesync.config import Config
from lakesync.model.hlc import OffsetClock
from lakesync.model.secrets import without_password
from lakesync.staging.store.pipeline import OpenStaging, PipelineStore


def table_uri(warehouse: str, namespace: str, table: str) -> str:
    """Return the URI of the folder with the files of a table in the lake.

    Args:
        warehouse: URI of the lake's warehouse, the folder of all tables.
        namespace: the table's namespace.
        table: the table's name in it.
    """
    return f"{warehouse.rstrip('/')}/{namespace}/{table}"


def checkpoints_uri(config: Config) -> str:
    """Return the URI of the folder with the checkpoints of all gateways."""
    folder = config.lake.checkpoints
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def staging_uri(config: Config) -> str:
    """Return the URI of the staging store, without its password."""
    return without_password(config.staging.url)


class LakeResource(dg.ConfigurableResource[None]):
    """The lake's catalogue and namespaces. Spark reads and writes its tables under these names."""

    catalog: str
    """The catalogue's name."""
    warehouse: str
    """URI of the folder of all tables."""
    system_namespace: str
    """Namespace of LakeSync's own tables, such as the history `deltas`."""
    namespace: str
    """Namespace of the state tables (current rows of synced tables) that gateways share."""
    checkpoints_uri: str
    """URI of the folder with the checkpoints: files with a gateway's rows, with which new clients start."""

    @classmethod
    def configured_by(cls, config: Config) -> "LakeResource":
        """Create the resource from the project's configuration."""
        return cls(
            catalog=config.lake.catalog,
            warehouse=config.lake.warehouse,
            system_namespace=config.lake.system_namespace,
            namespace=config.lake.namespace,
            checkpoints_uri=checkpoints_uri(config),
        )

    @property
    def names(self) -> LakeNames:
        """The names of the lake's tables; for state tables, in the namespace that gateways share."""
        return LakeNames(self.catalog, self.system_namespace, self.namespace)

    def names_in(self, namespace: str) -> LakeNames:
        """Return the names for another namespace of state tables; `""` is the one that gateways share."""
        return self.names.in_namespace(namespace)


class StagingResource(dg.ConfigurableResource[None]):
    """The gateways' staging store. It is opened when a step first uses it, and closed at the end of the run."""

    uri: str
    """The store's URI without its password, which Dagster's pages show."""
    settings: dg.ResourceDependency[Config]
    _opened: ExitStack = PrivateAttr(default_factory=ExitStack)
    _store: PipelineStore | None = PrivateAttr(default=None)
    _clock: OffsetClock | None = PrivateAttr(default=None)

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
        """A function that opens the store again, in a Spark task; it raises StagingUnavailableError."""
        return partial(pipeline_store, self.settings)

    def now_ms(self) -> int:
        """Return the server wall time in milliseconds since 1970, by the gateways' clock."""
        if self._clock is None:
            self._clock = OffsetClock(self.settings.clock_offset_file)
        return self._clock.now_ms()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the store at the end of the run."""
        self._store = None
        self._opened.close()


class IntakeResource(dg.ConfigurableResource[None]):
    """Opens the intake, which pushes polled rows to gateways as a client pushes its changes.

    It calls the gateway server if that process owns the staging store, and writes to the store itself otherwise.
    """

    settings: dg.ResourceDependency[Config]

    @property
    def opener(self) -> OpenIntake:
        """A function that opens the intake, in the step or in a Spark task.

        It raises StagingUnavailableError if the gateway server or the store cannot be reached.
        """
        return partial(open_intake, self.settings)
