"""The actions that a gateway supports: for each connector its handler, the schemas of the params, and the limits.

A gateway is one app's stream of changes. An action is a request of a client to do something in an external system, such
as to send an e-mail. It names a connector: a configured external system. A handler executes it: an object that the
program registered, or one made from a connector that is stored in the gateway. `Dispatcher` finds handlers here; the
route that lists actions calls `ActionServices.describe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from lakesync.connectors.base import ConnectorType
from lakesync.connectors.registry import Connectors
from lakesync.model.action_handlers import ActionDescriptor, ActionDiscovery, ActionHandler
from lakesync.model.errors import ConfigurationError
from lakesync.model.json_schema import JsonSchema
from lakesync.model.types import Action, ActionFailure, StoredConnector
from lakesync.staging.store import TransactionStore

_DAY_MS = 86_400_000

_NOT_SUPPORTED = "ACTION_NOT_SUPPORTED"
"""Error code of an action that no connector supports."""
INVALID_PARAMS = "ACTION_VALIDATION_ERROR"
"""Error code of an action with invalid params, or with an id that is not the hash of its content."""


class ActionLimits(msgspec.Struct, frozen=True):
    """Limits of one gateway's actions in one process. `[limits]`, or a program with an embedded gateway, sets them."""

    max_actions: int = 100
    """Actions per request. A request with more is rejected."""
    max_params_bytes: int = 256 << 10
    """Size of an action's params as JSON. A request with a larger action is rejected."""
    max_data_bytes: int = 256 << 10
    """Size of an action's result as JSON; a larger result is omitted."""
    max_running: int = 16
    """Handlers that run at the same time; further actions wait."""
    max_waiting: int = 1000
    """Actions that wait or run, together; further ones fail with a retryable error."""
    timeout: float = 20.0
    """Seconds that a request waits for its actions. The actions continue after that."""
    lease: float = 30.0
    """Seconds for which a claim (not one of a token) is valid. A process claims an action before it runs it, and renews
    the claim. If the process dies, another process may run the action after this time."""
    retention_ms: int = 7 * _DAY_MS
    """Milliseconds for which outcomes are stored, so that a repeated action gets the same outcome."""
    kept_entries: int = 10_000
    """Number of actions that the log for administrators keeps."""


class SupportedActions:
    """The descriptions of one connector's actions, which validate actions before they are executed."""

    def __init__(self, name: str, descriptors: Sequence[ActionDescriptor]) -> None:
        """Store the descriptors; schemas are compiled on first use.

        Args:
            name: the connector's name.
            descriptors: descriptions of the connector's actions: type, and a JSON Schema of the params.
        """
        self.name = name
        self.descriptors = tuple(descriptors)
        self._schemas: dict[str, JsonSchema] = {}
        """Type of action → the compiled schema of its params, as a cache."""
        self._by_type = {each.action_type: each for each in self.descriptors}

    def check(self) -> None:
        """Check that the descriptors are valid, by compiling every schema.

        Raises:
            ConfigurationError: an action type is described twice, or a params schema is invalid.
        """
        if len(self._by_type) < len(self.descriptors):
            raise ConfigurationError(
                f"connector {self.name!r} describes an action type twice: {', '.join(self._by_type)}"
            )
        for each in self.descriptors:
            self._params_schema(each)  # raises if it is invalid

    def reject(self, action: Action) -> ActionFailure | None:
        """Return the failure of an action that is unknown or has invalid params; None if it can be executed."""
        descriptor = self._by_type.get(action.action_type)
        if descriptor is None:
            known = ", ".join(sorted(self._by_type)) or "none"
            return failure(
                action, _NOT_SUPPORTED, f"connector {self.name!r} has no action {action.action_type!r}: it has {known}"
            )
        schema = self._params_schema(descriptor)
        problem = schema.violation(msgspec.json.decode(action.params), "params") if schema is not None else None
        return None if problem is None else failure(action, INVALID_PARAMS, problem)

    def _params_schema(self, descriptor: ActionDescriptor) -> JsonSchema | None:
        """Return the compiled schema of an action's params; None if the action accepts any params."""
        if descriptor.params_schema is None:
            return None
        schema = self._schemas.get(descriptor.action_type)
        if schema is None:
            schema = JsonSchema(descriptor.params_schema, f"the params of {self.name!r}.{descriptor.action_type}")
            self._schemas[descriptor.action_type] = schema
        return schema


def unknown_connector(action: Action) -> ActionFailure:
    """Return the failure of an action whose connector does not exist or has no actions."""
    return failure(
        action,
        _NOT_SUPPORTED,
        f"no connector {action.connector!r} supports actions here: GET …/actions lists those that do",
    )


def failure(action: Action, code: str, message: str, *, retryable: bool = False) -> ActionFailure:
    """Return the failure of an action.

    Args:
        action: the failed action; the failure has its id.
        code: the error code.
        message: the message for the client.
        retryable: whether a retry may succeed.
    """
    return ActionFailure(action.action_id, code, message, retryable)


class ActionService(NamedTuple):
    """A connector that executes actions."""

    actions: SupportedActions
    handler: Callable[[], ActionHandler]
    """Returns the handler, which it may create. May raise the errors of `ActionHandler.execute_action`."""


class ActionServices:
    """The action services of one gateway. Handlers registered here take precedence over connectors of the same name."""

    def __init__(self, gateway_id: str, store: TransactionStore, connectors: Connectors) -> None:
        """Create the services of a gateway.

        Args:
            gateway_id: the gateway id.
            store: the staging store, which has the gateway's connectors.
            connectors: the registry of connector types, which creates the connectors' handlers.
        """
        self._gateway = gateway_id
        self._store = store
        self._connectors = connectors
        self._registered: dict[str, ActionService] = {}
        """Connector → the service of the handler that the program registered for it."""
        self._supported: dict[str, tuple[ConnectorType, SupportedActions]] = {}
        """Connector → its type and its actions, as a cache."""

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
        """Return all supported actions by connector.

        Raises:
            StagingUnavailableError: the connectors cannot be read.
        """
        stored = self._store.read(self._gateway, lambda view: view.connectors()).result()
        services = {service.actions.name: service for service in self._services_of(stored)} | self._registered
        return ActionDiscovery({name: services[name].actions.descriptors for name in sorted(services)})

    async def find(self, name: str) -> ActionService | None:
        """Return the service of a connector; None if the connector is unknown or its type has no actions.

        Raises:
            StagingUnavailableError: the connectors cannot be read.
        """
        registered = self._registered.get(name)
        if registered is not None:
            return registered
        stored = await asyncio.wrap_future(self._store.read(self._gateway, lambda view: view.connectors()))
        return next(self._services_of(each for each in stored if each.name == name), None)

    def _services_of(self, stored: Iterable[StoredConnector]) -> Iterator[ActionService]:
        """Yield the services of those connectors whose type has actions."""
        for connector in stored:
            connector_type = self._connectors.find(connector.type)
            if connector_type is not None and connector_type.actions:
                yield ActionService(
                    self._supported_actions(connector.name, connector_type),
                    partial(self._handler, connector_type, connector),
                )

    def _supported_actions(self, name: str, connector_type: ConnectorType) -> SupportedActions:
        """Return the actions of a connector. They are cached, because compiling their schemas takes long."""
        cached = self._supported.get(name)
        if cached is None or cached[0] is not connector_type:
            cached = self._supported[name] = (connector_type, SupportedActions(name, connector_type.actions))
        return cached[1]

    def _handler(self, connector_type: ConnectorType, connector: StoredConnector) -> ActionHandler:
        """Create a connector's handler, with the connector's secrets decrypted."""
        return connector_type.make_handler(self._connectors.open(self._gateway, connector))
