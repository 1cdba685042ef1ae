"""Fixtures of the attack tests: the gateways of the integration tests."""

from tests.integration.conftest import serve, served, spawn, spawn_for_module

__all__ = ["serve", "served", "spawn", "spawn_for_module"]
