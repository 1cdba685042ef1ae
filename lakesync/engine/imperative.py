"""The imperative side of a gateway: actions that its clients ask for, and connectors registered at run time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from lakesync.actions import ActionLimits, ActionRunner, ActionServices, Dispatcher
from lakesync.connectors import Connectors
from lakesync.model.action_handlers import ActionDiscovery, ActionHandler, ConnectorDescriptor
from lakesync.model.errors import DuplicateError, NotFoundError
from lakesync.model.types import ActionPush, ActionResponse, Claims, StoredConnector
from lakesync.staging.records import ActionEntry
from lakesync.staging.store import Commit, StagingStore


class ImperativeGateway:
    """What `SyncGateway` has besides pushing and pulling."""

    def __init__(
        self,
        gateway_id: str,
        store: StagingStore,
        wall: Callable[[], int],
        limits: ActionLimits,
        connectors: Connectors | None = None,
        runner: ActionRunner | None = None,
    ) -> None:
        self.gateway_id = gateway_id
        self._store = store
        self._connectors = connectors or Connectors()
        self._services = ActionServices(gateway_id, store, self._connectors)
        self._dispatcher = Dispatcher(gateway_id, store, wall, self._services, runner or ActionRunner(), limits)

    def submit_action(self, push: ActionPush, claims: Claims) -> Future[ActionResponse]:
        """Do a client's actions, each once however often it is asked for; one outcome each, in order.

        Raises:
            ValidationError, ForbiddenError, ClockDriftError: nothing was done; the message names the place.
        Raises (in the future):
            StagingUnavailableError: a repeat is safe.
        """
        return self._dispatcher.submit(push, claims)

    def handle_action(self, push: ActionPush, claims: Claims | None = None) -> ActionResponse:
        """`submit_action`, waited for; without claims the request's own client id is believed."""
        return self.submit_action(push, claims or {"sub": push.client_id}).result()

    def describe_actions(self) -> ActionDiscovery:
        """What clients may ask for, by connector."""
        return self._services.describe()

    def connector_types(self) -> list[ConnectorDescriptor]:
        """The types of connector that may be registered, by name."""
        return self._connectors.descriptors()

    def register_action_handler(self, name: str, handler: ActionHandler) -> None:
        """Have `handler` do the actions of connector `name` in this process, in place of one that did.

        Raises:
            ConfigurationError: a description of an action is wrong; the message names it.
        """
        self._services.register(name, handler)

    def unregister_action_handler(self, name: str) -> None:
        """Have nobody do them; nothing where nobody did."""
        self._services.unregister(name)

    def list_action_handlers(self) -> list[str]:
        """The names of the handlers registered in this process."""
        return self._services.names()

    def action_log(self, before: int | None = None, limit: int = 100) -> list[ActionEntry]:
        """Attempts at actions, newest first: the newest, or those with `seq` below `before`."""
        return self._store.read(self.gateway_id, lambda view: view.action_log(before, limit)).result()

    def register_connector(self, body: Any) -> StoredConnector:
        """Register the connector that a decoded JSON object describes; its secrets are sealed before they are kept.

        Raises:
            ValidationError: the object is not of the form of its type; the message names the field.
            DuplicateError: the name is taken.
        """
        connector = self._connectors.take(self.gateway_id, body)

        def work(commit: Commit) -> StoredConnector:
            if connector.name in {each.name for each in commit.connectors()} | set(self._services.names()):
                raise DuplicateError(f"connector {connector.name!r} exists already: unregister it first")
            commit.put_connector(connector)
            return connector

        return self._store.submit(self.gateway_id, work).result()

    def declare_connector(self, body: Any) -> bool:
        """Register a connector in place of one with its name.

        Returns:
            Whether it was not registered like this before.

        Raises:
            ValidationError: the object is not of the form of its type; the message names the field.
        """
        connector = self._connectors.take(self.gateway_id, body)

        def work(commit: Commit) -> bool:
            if connector in commit.connectors():
                return False
            commit.put_connector(connector)
            return True

        return self._store.submit(self.gateway_id, work).result()

    def unregister_connector(self, name: str) -> None:
        """Forget a connector.

        Raises:
            NotFoundError: there is none of that name.
        """
        if not self._store.submit(self.gateway_id, lambda commit: commit.drop_connector(name)).result():
            raise NotFoundError(f"no connector {name!r} is registered")

    def connectors(self) -> list[StoredConnector]:
        """The registered connectors, by name; secrets are sealed or references."""
        return self._store.connectors(self.gateway_id)

    def reseal_connectors(self) -> None:
        """Bring secrets that are under an older key under the one in use."""

        def work(commit: Commit) -> None:
            for connector in commit.connectors():
                anew = self._connectors.resealed(connector)
                if anew != connector:
                    commit.put_connector(anew)

        if self._connectors.rotating:
            self._store.submit(self.gateway_id, work).result()
