"""Imperative actions: requests by clients that a connector executes exactly once each."""

from lakesync.actions.action_services import ActionServices
from lakesync.actions.dispatcher import BUSY, PENDING, Dispatcher
from lakesync.actions.limits import ActionLimits
from lakesync.actions.runner import ActionRunner

__all__ = ["BUSY", "PENDING", "ActionLimits", "ActionRunner", "ActionServices", "Dispatcher"]
