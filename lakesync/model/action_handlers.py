"""What an action handler is: the code that does what clients ask of a connector; and what clients are told of both."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from lakesync.model.schema import TableSchema
from lakesync.model.types import Action, Claims

ActionData = Mapping[str, Any] | None
"""What an action gives back: a JSON object; None stands for an empty one."""


class ActionDescriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One type of action that a handler does."""

    action_type: str
    description: str
    params_schema: dict[str, Any] | None = None
    """JSON Schema of the params; they are checked by it before the handler sees them."""


class ActionDiscovery(msgspec.Struct, frozen=True):
    """What a gateway's clients may ask for, by connector."""

    connectors: dict[str, tuple[ActionDescriptor, ...]]


SECRET = "writeOnly"  # noqa: S105 the name of a JSON Schema keyword
"""A field of a configuration schema with this keyword is a secret: never returned, never logged, sealed at rest."""

SERVER_FILE = "server-file"
"""The `format` of a field that names a file of the server: it is used only where `file:PATH` would be followed."""


class ConnectorDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """All that a form for a new connector of this type needs."""

    type: str
    display_name: str
    description: str
    category: Literal["database", "api"]
    config_schema: dict[str, Any]
    """JSON Schema of the settings under the key that is the type's name."""
    ingest_schema: dict[str, Any]
    """JSON Schema of `ingest`."""
    output_tables: tuple[TableSchema, ...] | None = None
    """The tables that it fills; None where the ingest names them."""

    @property
    def secrets(self) -> frozenset[str]:
        """The settings that are secret."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get(SECRET))

    @property
    def urls(self) -> frozenset[str]:
        """The settings that name an HTTP address, which the server's list of hosts must allow."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get("format") == "uri")

    @property
    def files(self) -> frozenset[str]:
        """The settings that name a file of the server."""
        fields: dict[str, Any] = self.config_schema.get("properties", {})
        return frozenset(name for name, schema in fields.items() if schema.get("format") == SERVER_FILE)


class ActionContext(NamedTuple):
    """Who asks, and how often it was tried."""

    gateway: str
    claims: Claims
    """The sender's token; a handler that is not for everyone looks here."""
    attempt: int
    """From 1. Above it, an earlier attempt may have happened in part or whole."""


class ActionHandler(Protocol):
    """Does the actions of one connector. Its methods may be called by several threads at once.

    An action may be tried again after a crash, so a handler hands `action.action_id` on as the other side's own
    idempotency key where there is one, or looks for its effect first when `context.attempt` is above 1.
    """

    @property
    def supported_actions(self) -> Sequence[ActionDescriptor]:
        """What it does; read once, when it is registered."""

    def execute_action(self, action: Action, context: ActionContext) -> ActionData | Awaitable[ActionData]:
        """Do it. A plain function runs in a thread of its own, a coroutine on a loop that it must not block.

        Raises:
            TransientError: it was not done and may be tried again, under the same id.
            TerminalError: it was not done and never will be; that is remembered and told to every repeat.
        """
