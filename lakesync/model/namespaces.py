"""Maps gateways to the namespaces of their state tables in the lake: the shared one, or one of their own.

Configuration, engine and lakehouse use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PATTERN = "^[a-z][a-z0-9]*(_[a-z0-9]+)*$"
"""Form of a gateway's own namespace: engines differ in case, and assets join the parts of their names by `__`."""

_TAKEN = frozenset({"default", "information_schema", "main", "pg_catalog", "public", "sys", "system", "temp"})
"""Names that have a meaning of their own in engines that read the lake."""


class Gateways(NamedTuple):
    """The gateways whose rows are in the tables of one namespace."""

    names: frozenset[str]
    others: bool
    """Whether it is all gateways but `names`."""

    def has(self, gateway: str) -> bool:
        """Return whether a gateway is among them."""
        return (gateway in self.names) != self.others


class Namespaces(NamedTuple):
    """The namespace of each gateway's state tables."""

    shared: str
    """Of every gateway that declares none."""
    own: Mapping[str, str]
    """Gateway to the namespace that it declares; several may declare the same."""

    @property
    def apart(self) -> list[str]:
        """The declared namespaces."""
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
        """Return a state table's name for people: with its namespace, unless that is the shared one."""
        return table if namespace == self.shared else f"{namespace}.{table}"


def check_namespaces(own: Mapping[str, str], *, shared: str, system: str, catalog: str) -> None:
    """Check the namespaces that gateways declare.

    Args:
        own: Gateway to the namespace that it declares.
        shared: `lake.namespace`, that of every gateway that declares none.
        system: `lake.system_namespace`, that of LakeSync's own tables.
        catalog: `lake.catalog`, the catalogue's name, which engines put before a namespace.

    Raises:
        ValueError: A name cannot be used, or means something else; the message says which.
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
