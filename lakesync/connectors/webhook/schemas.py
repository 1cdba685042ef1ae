"""The webhook's action, with the JSON Schema of its params."""

from __future__ import annotations

from lakesync.model.action_handlers import ActionDescriptor

SEND = ActionDescriptor(
    "send",
    "Post an event",
    {
        "type": "object",
        "properties": {
            "event": {"type": "string", "minLength": 1, "maxLength": 200},
            "payload": {"description": "Any JSON."},
        },
        "required": ["event"],
        "additionalProperties": False,
    },
)
