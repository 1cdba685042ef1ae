"""The actions that one connector supports, with compiled JSON Schemas of their params."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.errors import ConfigurationError
from lakesync.model.json_schema import Form
from lakesync.model.types import Action, ActionFailure

NOT_SUPPORTED = "ACTION_NOT_SUPPORTED"
INVALID_PARAMS = "ACTION_VALIDATION_ERROR"


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
        """Check the descriptions.

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
        described = self._by_type.get(action.action_type)
        if described is None:
            known = ", ".join(sorted(self._by_type)) or "none"
            return failure(
                action, NOT_SUPPORTED, f"connector {self.name!r} has no action {action.action_type!r}: it has {known}"
            )
        form = self._form(described)
        fault = form.fault(msgspec.json.decode(action.params), "params") if form is not None else None
        return None if fault is None else failure(action, INVALID_PARAMS, fault)

    def _form(self, described: ActionDescriptor) -> Form | None:
        if described.params_schema is None:
            return None
        known = self._forms.get(described.action_type)
        if known is None:
            known = Form(described.params_schema, f"the params of {self.name!r}.{described.action_type}")
            self._forms[described.action_type] = known
        return known


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
        message: for the client.
        retryable: whether a retry may succeed.
    """
    return ActionFailure(action.action_id, code, message, retryable)
