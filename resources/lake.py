"""The Dagster resource `lake`: the names and locations of the Iceberg tables."""

import dagster as dg

from lakehouse.table_definitions import LakeNames
from lakesync.config import Config
from resources.uris import checkpoints_uri


class LakeResource(dg.ConfigurableResource[None]):
    """The lake's catalogue and namespaces. Spark reads and writes its tables under these names."""

    catalog: str
    warehouse: str
    system_namespace: str
    namespace: str
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
        return f"{self.warehouse.rstrip('/')}/{namespace}/{table}"
