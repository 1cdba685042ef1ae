"""The interface of action handlers and connectors: what apps implement, and how both are described to clients."""

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
    description: str
    params_schema: dict[str, Any] | None = None
    """JSON Schema of the params, which are checked before the handler is called."""


class ActionDiscovery(msgspec.Struct, frozen=True):
    """The actions that a gateway's clients may request, by connector."""

    connectors: dict[str, tuple[ActionDescriptor, ...]]


SECRET = "writeOnly"  # noqa: S105 the name of a JSON Schema keyword
"""Keyword of a field in a configuration schema that is a secret: never returned or logged, and sealed when stored."""

SERVER_FILE = "server-file"
"""`format` of a field that names a file on the server, which is allowed only where `file:PATH` references are."""


class ConnectorDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A type of connector, with everything that a form for a new one needs."""

    type: str
    display_name: str
    description: str
    category: Literal["database", "api"]
    config_schema: dict[str, Any]
    """JSON Schema of the settings, which are under a key with the type's name."""
    ingest_schema: dict[str, Any]
    """JSON Schema of `ingest`."""
    output_tables: tuple[TableSchema, ...] | None = None
    """The tables that it writes; None if `ingest` names them."""

    @property
    def secrets(self) -> frozenset[str]:
        """The settings that are secret."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get(SECRET))

    @property
    def urls(self) -> frozenset[str]:
        """The settings that are HTTP URLs, whose hosts the server must allow."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get("format") == "uri")

    @property
    def files(self) -> frozenset[str]:
        """The settings that name a file on the server."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get("format") == SERVER_FILE)


class ActionContext(NamedTuple):
    """The sender of an action, and the number of the attempt."""

    gateway: str
    claims: Claims
    """Of the sender's token, for handlers that are not open to everyone."""
    attempt: int
    """From 1. If it is higher, an earlier attempt may have had all or part of its effect."""


class ActionHandler(Protocol):
    """Executes the actions of one connector. Its methods may be called by several threads.

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

        Raises:
            TransientError: it failed and may be tried again, with the same id.
            TerminalError: it failed for good; the error is stored and returned to every repeat.
        """
