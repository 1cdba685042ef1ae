"""DNS rebinding: a host name that resolves to one address when it is checked and to another one afterwards."""

from __future__ import annotations

import socket
from typing import Any

import pytest

NAME = "rebound.example"


def rebind(monkeypatch: pytest.MonkeyPatch, first: str, then: str) -> list[str]:
    """Resolve `NAME` to one address once and to another one afterwards; yield the list of its lookups."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host != NAME:
            return real(host, port, *args, **more)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (first if len(asked) == 1 else then, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked
