"""Imperative actions: what clients ask of connectors, done once each."""

from lakesync.actions.dispatcher import BUSY, PENDING, Dispatcher
from lakesync.actions.limits import ActionLimits
from lakesync.actions.runner import Runner
from lakesync.actions.services import Services

__all__ = ["BUSY", "PENDING", "ActionLimits", "Dispatcher", "Runner", "Services"]
