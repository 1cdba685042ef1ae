"""Maps gateways to the Iceberg namespaces of their state tables: the shared one, or one of their own.

A *gateway* is one tenant's or app's stream of changes; its *state tables* in the lake have the current rows.
Configuration, engine and lakehouse call this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PATTERN = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""Form of a gateway's own namespace, as a regular expression. SQL engines differ in how they treat case, and Dagster
assets join the parts of their names by `__`, so neither upper case nor `__` is allowed."""

_TAKEN = frozenset({"default", "information_schema", "main", "pg_catalog", "public", "sys", "system", "temp"})
"""Names that no gateway may declare, because SQL engines that read the lake give them another meaning."""


class Gateways(NamedTuple):
    """The gateways whose rows are in the tables of one namespace."""

    names: frozenset[str]
    """Gateway ids."""
    others: bool
    """Whether all gateways except `names` are meant, instead of `names`."""

    def has(self, gateway: str) -> bool:
        """Return whether a gateway is among them."""
        return (gateway in self.names) != self.others


class Namespaces(NamedTuple):
    """The namespace of each gateway's state tables."""

    shared: str
    """The namespace of every gateway that declares none."""
    own: Mapping[str, str]
    """By gateway id, the namespace that the gateway declares; several may declare the same."""

    @property
    def apart(self) -> list[str]:
        """The declared namespaces, each once, sorted."""
        return sorted(set(self.own.values()))

    def of(self, gateway: str) -> str:
        """Return a gateway's namespace."""
        return self.own.get(gateway, self.shared)

    def within(self, namespace: str) -> Gateways:
        """Return the gateways whose rows are in a namespace."""
        if namespace == self.shared:
            return Gateways(frozenset(self.own), others=True)
        return Gateways(frozenset(name for name, where in self.own.items() if where == namespace), others=False)

    def called(self, namespace: str, table: str) -> str:
        """Return a state table's name for people: with its namespace, unless that is the shared one.

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
        if not re.match(PATTERN, name) or len(name) > 64:
            raise ValueError(
                f"{setting}; it must be lower-case words of letters and digits with single underscores between, 64 "
                "characters at most, such as 'shop_eu'"
            )
        if name == shared.lower():
            raise ValueError(f"{setting}, which is lake.namespace: leave it out, and the gateway shares that one")
        if name == system.lower():
            raise ValueError(f"{setting}, which is lake.system_namespace, that of LakeSync's own tables; take another")
        if name in _TAKEN or name == catalog.lower():
            raise ValueError(f"{setting}, a name that engines take for something else; take another")
