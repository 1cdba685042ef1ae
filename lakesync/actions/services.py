"""Which connector does what: handlers of this process, and connectors registered at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from lakesync.actions.offers import Offer
from lakesync.connectors.base import ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.model.action_handlers import ActionDiscovery, ActionHandler
from lakesync.model.errors import ConfigurationError
from lakesync.model.types import StoredConnector
from lakesync.staging.store import StagingStore


class Service(NamedTuple):
    """A connector that does actions."""

    offer: Offer
    handler: Callable[[], ActionHandler]
    """Makes it, or gives the one there is; may raise what `ActionHandler.execute_action` may."""


class Services:
    """The connectors of one gateway that do actions. Handlers given here come before connectors of the same name."""

    def __init__(self, gateway_id: str, store: StagingStore, connectors: Connectors) -> None:
        self._gateway = gateway_id
        self._store = store
        self._connectors = connectors
        self._given: dict[str, Service] = {}
        self._offers: dict[str, tuple[ConnectorType, Offer]] = {}

    def register(self, name: str, handler: ActionHandler) -> None:
        """Have `handler` do the actions of connector `name` in this process, in place of one that did.

        Raises:
            ConfigurationError: the name is empty, or a description of an action is wrong.
        """
        if not name:
            raise ConfigurationError("an action handler needs a name: it is the connector that clients ask")
        offer = Offer(name, handler.supported_actions)
        offer.check()
        self._given[name] = Service(offer, lambda: handler)

    def unregister(self, name: str) -> None:
        """Have nobody do them; nothing where nobody did."""
        self._given.pop(name, None)

    def names(self) -> list[str]:
        """The handlers given here."""
        return sorted(self._given)

    def describe(self) -> ActionDiscovery:
        """Everything that is offered, by connector."""
        found = {service.offer.name: service for service in self._made(self._store.connectors(self._gateway))}
        found |= self._given
        return ActionDiscovery({name: found[name].offer.descriptors for name in sorted(found)})

    async def find(self, name: str) -> Service | None:
        """Who does the actions of a connector."""
        given = self._given.get(name)
        if given is not None:
            return given
        stored = await asyncio.wrap_future(self._store.read(self._gateway, lambda view: view.connectors()))
        return next(self._made(each for each in stored if each.name == name), None)

    def _made(self, stored: Iterable[StoredConnector]) -> Iterator[Service]:
        for connector in stored:
            kind = self._connectors.find(connector.type)
            if kind is not None and kind.actions:
                yield Service(self._offer(connector.name, kind), partial(self._handler, kind, connector))

    def _offer(self, name: str, kind: ConnectorType) -> Offer:
        """Made once, for its forms take longer to make than to use."""
        known = self._offers.get(name)
        if known is None or known[0] is not kind:
            known = self._offers[name] = (kind, Offer(name, kind.actions))
        return known[1]

    def _handler(self, kind: ConnectorType, connector: StoredConnector) -> ActionHandler:
        return kind.make_handler(self._connectors.open(self._gateway, connector))
