"""Maps gateways to the Iceberg namespaces of their state tables: the shared one, or one of their own.

A *gateway* is one app's stream of changes; its *state tables* in the lake, which are Iceberg tables, have the current
rows. Configuration, engine and lakehouse call this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_PATTERN = re.compile("[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""Form of a gateway's own namespace. SQL engines differ in how they treat case, and Dagster assets join the parts of
their names by `__`, so neither upper case nor `__` is allowed."""
_MAX_CHARS = 64
"""The most characters of a namespace, as of the names of tables and columns."""
_RESERVED = frozenset({"default", "information_schema", "main", "pg_catalog", "public", "sys", "system", "temp"})
"""Names that no gateway may declare, because SQL engines that read the lake give them another meaning."""


class Gateways(NamedTuple):
    """The gateways whose rows are in the tables of one namespace."""

    names: frozenset[str]
    """Gateway ids."""
    all_except: bool
    """Whether the gateways are all except `names`, instead of `names`."""

    def has(self, gateway: str) -> bool:
        """Return whether a gateway is among them."""
        return (gateway in self.names) != self.all_except


class Namespaces(NamedTuple):
    """The namespace of each gateway's state tables."""

    shared: str
    """The namespace of every gateway that declares none."""
    own: Mapping[str, str]
    """By gateway id, the namespace that the gateway declares; several may declare the same."""

    @property
    def declared(self) -> list[str]:
        """The namespaces that gateways declare, each once, sorted; without the shared one."""
        return sorted(set(self.own.values()))

    def of(self, gateway: str) -> str:
        """Return a gateway's namespace."""
        return self.own.get(gateway, self.shared)

    def gateways_in(self, namespace: str) -> Gateways:
        """Return the gateways whose rows are in a namespace."""
        if namespace == self.shared:
            return Gateways(frozenset(self.own), all_except=True)
        return Gateways(frozenset(name for name, own in self.own.items() if own == namespace), all_except=False)

    def table_name(self, namespace: str, table: str) -> str:
        """Return a state table's name in queries and output: `NAMESPACE.TABLE`, or `TABLE` in the shared namespace.

        Args:
            namespace: the namespace of the table.
            table: the synced table's name.
        """
        return table if namespace == self.shared else f"{namespace}.{table}"


def check_namespaces(own: Mapping[str, str], *, shared: str, system: str, catalog: str) -> None:
    """Check the namespaces that gateways declare.

    Args:
        own: by gateway id, the namespace that the gateway declares.
        shared: the setting `lake.namespace`: the namespace of every gateway that declares none.
        system: the setting `lake.system_namespace`: the namespace of LakeSync's own tables.
        catalog: the setting `lake.catalog`: the catalogue's name, which SQL engines put before a namespace.

    Raises:
        ValueError: a name cannot be used, or has another meaning; the message has the gateway and the reason. It is
            no LakeSyncError, because pydantic collects it with the errors of other settings.
    """
    for gateway, name in own.items():
        setting = f"gateways.{gateway}.namespace is {name!r}"
        if not _PATTERN.fullmatch(name) or len(name) > _MAX_CHARS:
            raise ValueError(
                f"{setting}; it must be lower-case words of letters and digits with single underscores between, "
                f"{_MAX_CHARS} characters at most, such as 'shop_eu'"
            )
        if name == shared.lower():
            raise ValueError(f"{setting}, which is lake.namespace: leave it out, and the gateway shares that one")
        if name == system.lower():
            raise ValueError(f"{setting}, which is lake.system_namespace, LakeSync's own: choose another")
        if name in _RESERVED or name == catalog.lower():
            raise ValueError(f"{setting}, a name with another meaning in SQL engines: choose another")
