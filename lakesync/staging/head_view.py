"""The part of a reading that the gateway's head answers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lakesync.staging.head import Head
from lakesync.staging.records import GatewayConfig


class HeadView(ABC):
    """A `View` of one gateway, as far as its head says; each store adds rows, entries and clients."""

    @property
    @abstractmethod
    def _head(self) -> Head:
        """The head at this moment of the reading or the work."""

    @property
    def gateway(self) -> str:
        """The gateway's id."""
        return self._head.gateway

    @property
    def epoch(self) -> int:
        """The store's epoch."""
        return self._head.epoch

    @property
    def arrival(self) -> int:
        """The newest safe arrival."""
        return self._head.arrival

    @property
    def config(self) -> GatewayConfig:
        """Schemas and rules in force."""
        return self._head.config

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of bodies not yet confirmed in the lake."""
        return self._head.bytes
