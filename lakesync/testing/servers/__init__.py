"""Servers that speak as the vendors' do, with a state of their own: for tests, demonstrations and users' own suites."""

from lakesync.testing.servers.http import Answer, Request, Served, Service, serving

__all__ = ["Answer", "Request", "Served", "Service", "serving"]
