"""Actions to send, and handlers that record their calls."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.delta import action_id
from lakesync.model.types import Action, ActionPush

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "minLength": 1}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["title"],
    "additionalProperties": False,
}


def make_action(
    hlc: int,
    params: dict[str, Any] | None = None,
    *,
    client: str = "alice",
    connector: str = "desk",
    kind: str = "create",
    key: str | None = None,
    identity: str | None = None,
) -> Action:
    raw = msgspec.Raw(msgspec.json.encode({"title": "x"} if params is None else params))
    made = action_id(client_id=client, hlc=hlc, connector=connector, action_type=kind, params=raw)
    return Action(client, hlc, connector, kind, raw, identity or made, key)


def ask(gateway, *actions: Action, claims: dict[str, Any] | None = None):
    """Execute actions; return their outcomes."""
    return gateway.handle_action(ActionPush(actions[0].client_id, actions), claims).results


def data_of(result) -> Any:
    return msgspec.json.decode(result.data)


class Desk:
    """Handles `create` (checked params) and `plain` (any params) with the test's `reaction`."""

    supported_actions = (
        ActionDescriptor("create", "Make one", SCHEMA),
        ActionDescriptor("plain", "Do anything"),
    )

    def __init__(self, reaction=None) -> None:
        self.reaction = reaction or (lambda _action, _context: {"n": len(self.asked)})
        self.asked: list[tuple[Action, Any]] = []
        self.lock = threading.Lock()

    def execute_action(self, action, context):
        with self.lock:
            self.asked.append((action, context))
        return self.reaction(action, context)


class AsyncDesk(Desk):
    async def execute_action(self, action, context):
        self.asked.append((action, context))
        found = self.reaction(action, context)
        return await found if hasattr(found, "__await__") else found
