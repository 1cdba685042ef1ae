"""The gateway's routes, as its OpenAPI document lists them, with the roles that may call each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.server import build_routes

DESCRIPTION: dict[str, Any] = build_routes().openapi()
_ACCESS = {"token": "client", "admin": "admin", "service": "service"}


@dataclass(frozen=True)
class Operation:
    """One method on one path."""

    method: str
    path: str
    described: dict[str, Any]
    """Its OpenAPI description."""

    @property
    def access(self) -> str:
        """The required access: `open`, `client`, `admin` or `service`."""
        (scheme,) = self.described["security"][0] if self.described.get("security") else [None]
        return _ACCESS[scheme] if scheme else "open"

    @property
    def summary(self) -> str:
        return self.described["summary"]

    @property
    def has_body(self) -> bool:
        return "requestBody" in self.described

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """The parameters, without the gateway's id."""
        return [each for each in self.described.get("parameters", []) if each["name"] != "gateway"]


OPERATIONS = tuple(
    Operation(method.upper(), path, described)
    for path, methods in DESCRIPTION["paths"].items()
    for method, described in methods.items()
)
