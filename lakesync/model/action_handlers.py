"""The interface of action handlers and connectors: what apps implement, and how both are described to clients.

An *action* is a client's command to an external system, for example "create an issue". A *connector* is such a system,
as configured; a *handler* executes its actions. A *gateway* is one app's stream of changes, and the *claims* of a
client are the fields of its token. `lakesync.actions` calls handlers, and `lakesync.connectors` contains those of the
built-in connector types. The gateway's routes that list actions and types of connectors return the descriptors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.model.types import Action, Claims

ActionData = Mapping[str, Any] | None
"""The result of an action: a JSON object; None means an empty one."""


class ActionDescriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One type of action that a handler executes."""

    action_type: str
    """The name of the type, as clients send it."""
    description: str
    """What the action does, for people."""
    params_schema: dict[str, Any] | None = None
    """The JSON Schema of the params, which are checked before the handler is called; None accepts any params."""


class ActionDiscovery(msgspec.Struct, frozen=True):
    """The actions that a gateway's clients may request, by connector."""

    connectors: dict[str, tuple[ActionDescriptor, ...]]
    """The types of actions, by connector name."""


SECRET = "writeOnly"  # noqa: S105 the name of a JSON Schema keyword
"""The JSON Schema keyword that marks a setting as secret: it is never returned or logged, and encrypted when stored."""

SERVER_FILE = "server-file"
"""The JSON Schema `format` of a setting that names a file on the server. A user who may set it could read any file, so
it is accepted only for files that the server's operator also allows as references `file:PATH`, in place of secrets."""


class ConnectorDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A type of connector, with everything that a form for a new connector needs."""

    type: str
    """The name of the type, for example `jira`."""
    display_name: str
    """The name for people."""
    description: str
    category: Literal["database", "api"]
    config_schema: dict[str, Any]
    """The JSON Schema of the settings. A request that registers a connector has them under a key with the type's name,
    for example `{"type": "jira", "jira": {...}}`."""
    ingest_schema: dict[str, Any]
    """The JSON Schema of `ingest`: how the connector is polled."""
    output_tables: tuple[TableSchema, ...] | None = None
    """The tables that polls (reads of the external system's rows) fill; None if `ingest` names them."""

    @property
    def secrets(self) -> frozenset[str]:
        """Names of the settings that are secret; as for `urls` and `files`, at the top level of `config_schema`."""
        return self._settings_with(SECRET, True)

    @property
    def urls(self) -> frozenset[str]:
        """The settings that are HTTP URLs. The server accepts only those whose hosts its configuration allows."""
        return self._settings_with("format", "uri")

    @property
    def files(self) -> frozenset[str]:
        """The settings that name a file on the server."""
        return self._settings_with("format", SERVER_FILE)

    def _settings_with(self, keyword: str, value: object) -> frozenset[str]:
        """Return the settings whose JSON Schema has a keyword with this value."""
        settings: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in settings.items() if schema.get(keyword) == value)


class ActionContext(NamedTuple):
    """Who requested an action, and how often it was tried: the second argument of a handler."""

    gateway: str
    """The id of the gateway that received the action."""
    claims: Claims
    """The verified claims of the sender's token, for handlers that do not serve everyone."""
    attempt: int
    """The number of the attempt, from 1. Above 1, an earlier attempt may have had all or part of its effect."""


class ActionHandler(Protocol):
    """Executes the actions of one connector. Several threads may call its methods at the same time.

    An action may be tried again after a crash. So a handler passes `action.action_id` on as the external system's
    idempotency key or, if `context.attempt` is above 1, first checks whether the action was done.
    """

    @property
    def supported_actions(self) -> Sequence[ActionDescriptor]:
        """The actions that it executes; read once, when it is registered."""

    def execute_action(self, action: Action, context: ActionContext) -> ActionData | Awaitable[ActionData]:
        """Execute an action. A plain function runs in its own thread, a coroutine on a loop that it must not block.

        Args:
            action: the action.
            context: who requested it, and the number of the attempt.

        Returns:
            The result for the client: a JSON object, or None for an empty one.

        Raises:
            TransientError: it failed and may be tried again, with the same id.
            TerminalError: it failed for good; the error is stored and returned to every repeat.
        """
