"""The Dagster resource `lake`: the names and locations of the Iceberg tables.

The functions build URIs of a deployment's tables, folders and stores, for the metadata of assets. Nothing is opened.
"""

from pathlib import Path

import dagster as dg

from lakehouse.table_definitions import LakeNames
from lakesync.config import Config
from lakesync.model.secrets import without_password


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
    gateway_namespaces: dict[str, str]
    """Gateway → its own namespace; the other gateways share `namespace`."""
    checkpoints_uri: str

    @classmethod
    def configured_by(cls, config: Config) -> "LakeResource":
        """Create the resource from the project's configuration."""
        return cls(
            catalog=config.lake.catalog,
            warehouse=config.lake.warehouse,
            system_namespace=config.lake.system_namespace,
            namespace=config.lake.namespace,
            gateway_namespaces=dict(config.namespaces.own),
            checkpoints_uri=checkpoints_uri(config),
        )

    @property
    def names(self) -> LakeNames:
        """The names of the lake's tables, with the namespace that gateways share."""
        return LakeNames(self.catalog, self.system_namespace, self.namespace)

    def names_in(self, namespace: str) -> LakeNames:
        """Return the names with another namespace of state tables; `""` is the one that gateways share."""
        return self.names.in_namespace(namespace)

    def uri(self, namespace: str, table: str) -> str:
        """Return the URI of the folder with a table's files.

        Args:
            namespace: the table's namespace.
            table: the table's name in it.
        """
        return table_uri(self.warehouse, namespace, table)
