"""`ApiActions`: executes actions through a vendor's API, with one client per action. Jira and Salesforce use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.types import Action


class Closable(Protocol):
    """A client with open connections."""

    def close(self) -> None:
        """Close the connections."""


C = TypeVar("C", bound=Closable)
"""The vendor's client."""

Params = Mapping[str, Any]
ActionFunction = Callable[[C, Action, Params, ActionContext], Mapping[str, Any]]
"""Executes an action whose params are valid, and returns its result."""


class ApiActions(Generic[C]):
    """The `ActionHandler` of one connector."""

    def __init__(
        self, connect: Callable[[], C], functions: Sequence[tuple[ActionDescriptor, ActionFunction[C]]]
    ) -> None:
        """Register the actions.

        Args:
            connect: creates a client; must not send requests yet.
            functions: each action's descriptor, and the function that executes it.
        """
        self.supported_actions = tuple(descriptor for descriptor, _ in functions)
        self._connect = connect
        self._functions = {descriptor.action_type: function for descriptor, function in functions}

    def execute_action(self, action: Action, context: ActionContext) -> Mapping[str, Any]:
        """Execute an action and return its result.

        Raises:
            LakeSyncError: the vendor rejected it. The error's class says whether a retry may help.
        """
        client = self._connect()
        try:
            return self._functions[action.action_type](client, action, msgspec.json.decode(action.params), context)
        finally:
            client.close()
