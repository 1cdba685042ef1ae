"""The part of `SyncGateway` for actions that clients request, and for connectors that admins register at run time.

An *action* is a request to an external system, for example "create a Jira issue". A *connector* is such a system, as
configured; its rows may also be *polled*, which means read at intervals. The *staging store*, the database that pushes
are committed to, has the outcomes of actions and the registered connectors. *Claims* are the fields of a client's
token. The routes of `gateway/` and embedding apps call these methods.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from lakesync.actions import ActionServices, Dispatcher
from lakesync.engine.checks import EngineLimits
from lakesync.engine.gateway_base import GatewayBase, SharedParts
from lakesync.model.action_handlers import ActionDiscovery, ActionHandler, ConnectorDescriptor
from lakesync.model.errors import DuplicateError, NotFoundError
from lakesync.model.types import ActionPush, ActionResponse, Claims, StoredConnector
from lakesync.staging.records import ActionEntry
from lakesync.staging.store import StagingStore
from lakesync.staging.store.operations import ActionCommit


class ActionGateway(GatewayBase):
    """A base class of `SyncGateway` with its methods for actions and connectors; it is never used alone."""

    def __init__(self, gateway_id: str, store: StagingStore, limits: EngineLimits, shared: SharedParts) -> None:
        """Create the dispatcher of actions; see `GatewayBase` for the arguments."""
        super().__init__(gateway_id, store, limits, shared)
        self._connectors = shared.connectors
        self._services = ActionServices(gateway_id, store, self._connectors)
        self._dispatcher = Dispatcher(gateway_id, store, shared.wall, self._services, shared.runner, limits.actions)

    def submit_action(self, push: ActionPush, claims: Claims) -> Future[ActionResponse]:
        """Execute a client's actions. A repeated request executes none of them again and returns the stored outcomes.

        Args:
            push: the requested actions.
            claims: the verified claims of the client's token.

        Returns:
            A future of the response, with one outcome for each action, in their order.

        Raises:
            ValidationError, ForbiddenError, ClockDriftError: no action was executed; the message names the invalid one.
        Raises (in the future):
            StagingUnavailableError: the store does not respond; the request can be repeated.
        """
        return self._dispatcher.submit(push, claims)

    def handle_action(self, push: ActionPush, claims: Claims | None = None) -> ActionResponse:
        """Execute a client's actions and wait for their outcomes; see `submit_action` for errors.

        Args:
            push: the requested actions.
            claims: the verified claims of the client's token; None trusts the client id in the request.

        Raises:
            StagingUnavailableError: the store does not respond; the request can be repeated.
        """
        return self.submit_action(push, claims or {"sub": push.client_id}).result()

    def describe_actions(self) -> ActionDiscovery:
        """Return the actions that clients may request, by connector."""
        return self._services.describe()

    def connector_types(self) -> list[ConnectorDescriptor]:
        """Return the connector types, ordered by name."""
        return self._connectors.descriptors()

    def register_action_handler(self, name: str, handler: ActionHandler) -> None:
        """Register a handler that executes a connector's actions in this process. It replaces an earlier handler.

        Args:
            name: the connector's name, as in the `connector` of an action.
            handler: describes and executes the connector's actions.

        Raises:
            ConfigurationError: the description of an action is invalid; the message names it.
        """
        self._services.register(name, handler)

    def unregister_action_handler(self, name: str) -> None:
        """Remove the handler of a connector, if there is one."""
        self._services.unregister(name)

    def list_action_handlers(self) -> list[str]:
        """Return the connector names of the handlers in this process."""
        return self._services.names()

    def action_log(self, before: int | None = None, limit: int = 100) -> list[ActionEntry]:
        """Return the logged attempts to execute actions, newest first.

        Args:
            before: return only attempts with a lower `seq`; None starts with the newest.
            limit: the most attempts to return.
        """
        return self._store.read(self.gateway_id, lambda view: view.action_log(before, limit)).result()

    def register_connector(self, body: Any) -> StoredConnector:
        """Register a new connector. Its secrets are encrypted before they are stored.

        Args:
            body: the decoded JSON object `{name, type, TYPE: {…}, ingest?}`: the settings are under the type's name,
                and `ingest` has the schedule of polls.

        Raises:
            ValidationError: the settings are invalid for the connector's type; the message names the field.
            DuplicateError: a connector with this name is registered.
        """
        connector = self._connectors.seal(self.gateway_id, body)

        def add(commit: ActionCommit) -> StoredConnector:
            # a handler in this process would receive the actions of a connector with its name
            if connector.name in {each.name for each in commit.connectors()} | set(self._services.names()):
                raise DuplicateError(f"connector {connector.name!r} exists already: unregister it first")
            commit.put_connector(connector)
            return connector

        return self._store.submit(self.gateway_id, add).result()

    def declare_connector(self, body: Any) -> bool:
        """Register a connector, or replace the one with its name. A repeat without a literal secret changes nothing.

        Args:
            body: the decoded JSON object `{name, type, TYPE: {…}, ingest?}`: the settings are under the type's name,
                and `ingest` has the schedule of polls.

        Returns:
            Whether the stored registration changed.

        Raises:
            ValidationError: the settings are invalid for the connector's type; the message names the field.
            DuplicateError: this process has a handler of that name, which would receive the connector's actions.
        """
        connector = self._connectors.seal(self.gateway_id, body)

        def put(commit: ActionCommit) -> bool:
            if connector.name in self._services.names():
                raise DuplicateError(f"connector {connector.name!r} has a handler in this process: choose another name")
            if connector in commit.connectors():
                return False
            commit.put_connector(connector)
            return True

        return self._store.submit(self.gateway_id, put).result()

    def unregister_connector(self, name: str) -> None:
        """Remove a registered connector.

        Raises:
            NotFoundError: no connector has this name.
        """
        if not self._store.submit(self.gateway_id, lambda commit: commit.drop_connector(name)).result():
            raise NotFoundError(f"no connector {name!r} is registered")

    def connectors(self) -> list[StoredConnector]:
        """Return the registered connectors, ordered by name. Their secrets are encrypted, or references: `env:NAME`."""
        return self._store.connectors(self.gateway_id)

    def reseal_connectors(self) -> None:
        """Encrypt secrets with the current key if they are encrypted with the previous one; `Engine.open` calls it."""

        def reseal(commit: ActionCommit) -> None:
            for connector in commit.connectors():
                resealed = self._connectors.reseal(connector)
                if resealed != connector:
                    commit.put_connector(resealed)

        if self._connectors.has_older_key:
            self._store.submit(self.gateway_id, reseal).result()
