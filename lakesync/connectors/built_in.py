"""The connector types that LakeSync comes with: what describes them, what they do, how they are polled.

The code of a type is imported when one of its connectors is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lakesync.connectors.base import ConnectorConfig, ConnectorType
from lakesync.connectors.descriptors import BUILT_IN as DESCRIPTORS
from lakesync.connectors.jira.offers import ADD_COMMENT, CREATE_ISSUE, TRANSITION
from lakesync.connectors.salesforce.offers import CREATE_RECORD, UPDATE_RECORD
from lakesync.connectors.tables import JIRA_SWITCHES, SALESFORCE_SWITCHES
from lakesync.connectors.webhook.offers import SEND
from lakesync.model.action_handlers import ActionDescriptor, ConnectorDescriptor

_ACTIONS: dict[str, tuple[str, tuple[ActionDescriptor, ...]]] = {
    "jira": ("lakesync.connectors.jira.actions:handler", (CREATE_ISSUE, ADD_COMMENT, TRANSITION)),
    "salesforce": ("lakesync.connectors.salesforce.actions:handler", (CREATE_RECORD, UPDATE_RECORD)),
    "webhook": ("lakesync.connectors.webhook.actions:WebhookActions", (SEND,)),
}
_SOURCES = {
    "postgres": "lakesync.connectors.sql.postgres:source",
    "mysql": "lakesync.connectors.sql.mysql:source",
    "bigquery": "lakesync.connectors.sql.bigquery:source",
    "jira": "lakesync.connectors.jira.source:JiraSource",
    "salesforce": "lakesync.connectors.salesforce.source:SalesforceSource",
}
_SWITCHES = {"jira": JIRA_SWITCHES, "salesforce": SALESFORCE_SWITCHES}


class _Late:
    """What a module makes of a configuration; it is imported when it is first asked."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __call__(self, config: ConnectorConfig) -> Any:
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)(config)


def _whole(descriptor: ConnectorDescriptor) -> ConnectorType:
    more: dict[str, Any] = {}
    if descriptor.type in _ACTIONS:
        place, offered = _ACTIONS[descriptor.type]
        more |= {"actions": offered, "make_handler": _Late(place)}
    if descriptor.type in _SOURCES:
        more["open_source"] = _Late(_SOURCES[descriptor.type])
    if descriptor.type in _SWITCHES:
        more["switches"] = _SWITCHES[descriptor.type]
    return ConnectorType(descriptor, **more)


BUILT_IN = tuple(_whole(descriptor) for descriptor in DESCRIPTORS)
"""By type: postgres, mysql, bigquery, jira, salesforce, webhook."""
