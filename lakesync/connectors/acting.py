"""Actions done over a vendor's API: one client an action, closed when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.types import Action


class Closable(Protocol):
    """A client that holds connections."""

    def close(self) -> None:
        """Close them."""


C = TypeVar("C", bound=Closable)

Params = Mapping[str, Any]
Do = Callable[[C, Action, Params, ActionContext], Mapping[str, Any]]
"""Does an action whose params fit their schema, and tells what became of it."""


class ApiActions(Generic[C]):
    """The actions of one connector."""

    def __init__(self, connect: Callable[[], C], does: Sequence[tuple[ActionDescriptor, Do[C]]]) -> None:
        """Args: connect: makes a client, and asks nothing yet; does: what is offered, and what does it."""
        self.supported_actions = tuple(descriptor for descriptor, _ in does)
        self._connect = connect
        self._does = {descriptor.action_type: do for descriptor, do in does}

    def execute_action(self, action: Action, context: ActionContext) -> Mapping[str, Any]:
        """Do it.

        Raises:
            LakeSyncError: the vendor refused it, by its class; a terminal one is final.
        """
        client = self._connect()
        try:
            return self._does[action.action_type](client, action, msgspec.json.decode(action.params), context)
        finally:
            client.close()
