"""Fake servers of Jira, Salesforce and OIDC login providers, which keep their state in memory.

Tests, demonstrations, `lakesync fake` and the test suites of apps run them. Each vendor has a package, which
implements `Service`; `serve` runs a service on a local port.
"""

from lakesync.testing.servers.http import Request, Response, RunningServer, Service, serve

__all__ = ["Request", "Response", "RunningServer", "Service", "serve"]
