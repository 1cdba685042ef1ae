"""What the API of an organisation says where it refuses."""

from __future__ import annotations

from typing import Any

from lakesync.testing.servers.http import Answer


def error(status: int, code: str, message: str, **more: Any) -> Answer:
    """An error as the API gives it: a list of one."""
    return Answer(status, [{"message": message, "errorCode": code, **more}])


def unknown() -> Answer:
    """There is nothing at this place."""
    return error(404, "NOT_FOUND", "The requested resource does not exist")
