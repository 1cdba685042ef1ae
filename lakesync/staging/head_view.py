"""The properties of a `View` that come from the gateway's head, for both stores."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lakesync.staging.head import Head
from lakesync.staging.records import GatewayConfig


class HeadView(ABC):
    """The part of a `View` that reads the head; each store adds rows, entries and clients."""

    @property
    @abstractmethod
    def _head(self) -> Head:
        """The current head of the view's gateway."""

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
        """The newest safe arrival; see `View.arrival`."""
        return self._head.arrival

    @property
    def config(self) -> GatewayConfig:
        """The active schemas and rules."""
        return self._head.config

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of bodies that the lake has not confirmed."""
        return self._head.bytes
