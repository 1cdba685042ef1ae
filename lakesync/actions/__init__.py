"""Imperative actions: requests of clients to do something in an external system, which connectors execute once."""

from lakesync.actions.action_services import ActionLimits, ActionServices
from lakesync.actions.dispatcher import BUSY, PENDING, Dispatcher
from lakesync.actions.runner import ActionRunner

__all__ = ["BUSY", "PENDING", "ActionLimits", "ActionRunner", "ActionServices", "Dispatcher"]
