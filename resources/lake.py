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
        """Create the resource of a configuration."""
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
        """The tables' names, with the namespace that gateways share."""
        return LakeNames(self.catalog, self.system_namespace, self.namespace)

    def names_in(self, namespace: str) -> LakeNames:
        """Return the names with the state tables of a namespace; `""` is the one that gateways share."""
        return self.names.in_namespace(namespace)

    def uri(self, namespace: str, table: str) -> str:
        """Return the folder of a table's files.

        Args:
            namespace: of the table.
            table: its name in the namespace.
        """
        return f"{self.warehouse.rstrip('/')}/{namespace}/{table}"
