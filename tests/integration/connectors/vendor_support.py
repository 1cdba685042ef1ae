"""A vendor's API on a local server with a manual clock, a connector to it, and the target of its pages."""

from __future__ import annotations

from contextlib import contextmanager

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import HostPolicy
from lakesync.testing.landing import MemoryLanding, poll
from lakesync.testing.servers import serve

LOOPBACK = HostPolicy(("127.0.0.1",))
"""The hosts of the tests' vendors."""


class Vendor:
    """The common part of all vendors; a subclass defines the connector and the expected result of a poll."""

    name = kind = ""
    """The name and kind of the connector."""
    make_source = None
    """Creates the source of a configuration."""

    def __init__(self, clock, api):
        self.clock, self.api = clock, api
        self.landing = self.served = None
        self.url = ""

    def settings(self):
        """The connector's settings."""
        raise NotImplementedError

    def source_options(self):
        """Further arguments of the source."""
        return {}

    def config(self, **settings):
        return ConnectorConfig("gw", self.name, self.kind, {**self.settings(), **settings}, hosts=LOOPBACK)

    @contextmanager
    def source(self, **settings):
        source = type(self).make_source(
            self.config(**settings), attempts=3, retry_timeout_s=1.5, **self.source_options()
        )
        try:
            yield source
        finally:
            source.close()

    def poll(self, *, census=False, settings=None, **arguments):
        with self.source(**(settings or {})) as source:
            self.landing = self.landing or MemoryLanding(source.tables)
            return poll(source, self.landing, census=census, **arguments)

    @contextmanager
    def listening(self):
        """The vendor's API on a local server."""
        with serve(self.api) as served:
            self.served, self.url = served, served.url
            yield self
