"""What an action handler is: the code that does what clients ask of a connector."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from lakesync.types import Action, Claims

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
