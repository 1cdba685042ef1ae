"""The actions that one connector supports, with compiled JSON Schemas of their params.

`ActionServices` and `Dispatcher` call it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.errors import ConfigurationError
from lakesync.model.json_schema import Form
from lakesync.model.types import Action, ActionFailure

NOT_SUPPORTED = "ACTION_NOT_SUPPORTED"
"""Code of an action that no connector supports."""
INVALID_PARAMS = "ACTION_VALIDATION_ERROR"
"""Code of an action with invalid params, or with an id that is not the hash of its content."""


class SupportedActions:
    """The actions of one connector."""

    def __init__(self, name: str, descriptors: Sequence[ActionDescriptor]) -> None:
        """Store the descriptors; schemas are compiled on first use.

        Args:
            name: the connector's name.
            descriptors: its actions.
        """
        self.name = name
        self.descriptors = tuple(descriptors)
        self._forms: dict[str, Form] = {}
        self._by_type = {each.action_type: each for each in self.descriptors}

    def check(self) -> None:
        """Check the descriptors.

        Raises:
            ConfigurationError: an action type is described twice, or a params schema is invalid.
        """
        if len(self._by_type) < len(self.descriptors):
            raise ConfigurationError(
                f"connector {self.name!r} describes an action type twice: {', '.join(self._by_type)}"
            )
        for each in self.descriptors:
            self._form(each)

    def reject(self, action: Action) -> ActionFailure | None:
        """Return the failure of an action that is unknown or has invalid params; None if it can be executed."""
        descriptor = self._by_type.get(action.action_type)
        if descriptor is None:
            known = ", ".join(sorted(self._by_type)) or "none"
            return failure(
                action, NOT_SUPPORTED, f"connector {self.name!r} has no action {action.action_type!r}: it has {known}"
            )
        form = self._form(descriptor)
        problem = form.fault(msgspec.json.decode(action.params), "params") if form is not None else None
        return None if problem is None else failure(action, INVALID_PARAMS, problem)

    def _form(self, descriptor: ActionDescriptor) -> Form | None:
        """Return the compiled schema of an action's params; None if the action accepts any params."""
        if descriptor.params_schema is None:
            return None
        form = self._forms.get(descriptor.action_type)
        if form is None:
            form = Form(descriptor.params_schema, f"the params of {self.name!r}.{descriptor.action_type}")
            self._forms[descriptor.action_type] = form
        return form


def unknown_connector(action: Action) -> ActionFailure:
    """Return the failure of an action whose connector does not exist or has no actions."""
    return failure(
        action,
        NOT_SUPPORTED,
        f"no connector {action.connector!r} supports actions here: GET …/actions lists those that do",
    )


def failure(action: Action, code: str, message: str, *, retryable: bool = False) -> ActionFailure:
    """Return the failure of an action.

    Args:
        action: the action.
        code: the error code.
        message: the message, which the client gets.
        retryable: whether a retry may succeed.
    """
    return ActionFailure(action.action_id, code, message, retryable)
