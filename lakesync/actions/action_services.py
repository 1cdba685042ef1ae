"""Finds the handler that executes a connector's actions: one in this process, or that of a registered connector.

`Dispatcher` calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from lakesync.actions.supported_actions import SupportedActions
from lakesync.connectors.base import ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.model.action_handlers import ActionDiscovery, ActionHandler
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import StoredConnector
from lakesync.staging.store import TransactionStore


class ActionService(NamedTuple):
    """A connector that executes actions."""

    actions: SupportedActions
    handler: Callable[[], ActionHandler]
    """Creates or returns the handler. May raise the errors of `ActionHandler.execute_action`."""


class ActionServices:
    """The action services of one gateway. Handlers registered here take precedence over connectors of the same name."""

    def __init__(self, gateway_id: str, store: TransactionStore, connectors: Connectors) -> None:
        """Create the services of a gateway.

        Args:
            gateway_id: the gateway id.
            store: the staging store.
            connectors: the registry of connector types.
        """
        self._gateway = gateway_id
        self._store = store
        self._connectors = connectors
        self._registered: dict[str, ActionService] = {}
        self._supported: dict[str, tuple[ConnectorType, SupportedActions]] = {}

    def register(self, name: str, handler: ActionHandler) -> None:
        """Let a handler execute the actions of a connector in this process, replacing an earlier handler.

        Args:
            name: the connector's name.
            handler: the handler.

        Raises:
            ConfigurationError: the name is empty, or an action's description is invalid.
        """
        if not name:
            raise ConfigurationError("an action handler needs a name: the connector's name in actions")
        actions = SupportedActions(name, handler.supported_actions)
        actions.check()
        self._registered[name] = ActionService(actions, lambda: handler)

    def unregister(self, name: str) -> None:
        """Remove a handler, if it is registered."""
        self._registered.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of the registered handlers."""
        return sorted(self._registered)

    def describe(self) -> ActionDiscovery:
        """Return all supported actions by connector."""
        stored = self._store.read(self._gateway, lambda view: view.connectors()).result()
        found = {service.actions.name: service for service in self._services_of(stored)}
        found |= self._registered
        return ActionDiscovery({name: found[name].actions.descriptors for name in sorted(found)})

    async def find(self, name: str) -> ActionService | None:
        """Return the service for a connector; None for an unknown connector."""
        registered = self._registered.get(name)
        if registered is not None:
            return registered
        stored = await asyncio.wrap_future(self._store.read(self._gateway, lambda view: view.connectors()))
        return next(self._services_of(each for each in stored if each.name == name), None)

    def _services_of(self, stored: Iterable[StoredConnector]) -> Iterator[ActionService]:
        for connector in stored:
            kind = self._connectors.find(connector.type)
            if kind is not None and kind.actions:
                yield ActionService(
                    self._supported_actions(connector.name, kind), partial(self._handler, kind, connector)
                )

    def _supported_actions(self, name: str, kind: ConnectorType) -> SupportedActions:
        """Return the actions of a connector. They are cached, because compiling their schemas takes long."""
        cached = self._supported.get(name)
        if cached is None or cached[0] is not kind:
            cached = self._supported[name] = (kind, SupportedActions(name, kind.actions))
        return cached[1]

    def _handler(self, kind: ConnectorType, connector: StoredConnector) -> ActionHandler:
        return kind.make_handler(self._connectors.open(self._gateway, connector))
