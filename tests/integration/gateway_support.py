"""Clients of a real gateway, and the process that it may run in."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import jwt
import requests
from jsonschema import Draft202012Validator
from pydantic import SecretStr

from gateway.openapi_schemas import JSON
from gateway.settings import GatewaySettings
from lakesync.config import Config
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.types import RowDelta
from lakesync.wire import json as wire_json
from tests.forked import Forked
from tests.integration.gateway.operations import DESCRIPTION

SECRET = "the secret with which these tests sign"
PREVIOUS = "the secret that these tests signed with before"
SERVICE = "the token that the pipeline shows"
DEADLINE = 60.0
GATEWAY_NUMBERS = count()  # shared by all servers of this process, several of which may use one staging store


def reached_at(served: Served, config: Config) -> Config:
    """A configuration with which the pipeline and its tasks reach a server."""
    return config.replace(gateway={"url": served.url}, service_token=SecretStr(SERVICE))


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def sign(sub: str = "client-1", gw: str = "gw", *, secret: str = SECRET, seconds: float = 86_400, **claims: Any) -> str:
    return jwt.encode({"sub": sub, "gw": gw, "exp": time.time() + seconds, **claims}, secret, algorithm="HS256")


def filled(path: str, **values: str) -> str:
    """A route's path with its parameters filled in, by default with `x`."""
    return re.sub(r"\{(\w+)\}", lambda parameter: values.get(parameter[1], "x"), path)


def delta(
    row: str,
    after: dict[str, Any] | None,
    *,
    before: dict[str, Any] | None = None,
    client: str = "client-1",
    table: str = "todos",
    hlc: int | None = None,
) -> dict[str, Any]:
    """One delta in JSON form."""
    stamp = (wall_ms() << 16) if hlc is None else hlc
    made: RowDelta | None = extract_delta(before, after, table=table, row_id=row, client_id=client, hlc=stamp)
    assert made is not None
    return json.loads(wire_json.encode_delta(made))


def check_documented(method: str, path: str, answer: requests.Response) -> None:
    """Check that the OpenAPI document has the answer's status, media type and form."""
    described = DESCRIPTION["paths"].get(path, {}).get(method.lower())
    if described is None:
        return
    responses = described["responses"]
    assert str(answer.status_code) in responses, f"{method} {path} answered {answer.status_code}: {answer.text}"
    media = answer.headers["content-type"].partition(";")[0]
    content = responses[str(answer.status_code)]["content"]
    assert media in content
    if media == JSON:
        form = {**content[JSON]["schema"], "components": DESCRIPTION["components"]}
        Draft202012Validator(form).validate(answer.json())


@dataclass
class Client:
    """One client of one gateway."""

    url: str
    gateway: str
    client_id: str = "client-1"
    role: str = "client"
    claims: dict[str, Any] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return sign(self.client_id, self.gateway, role=self.role, **self.claims)

    def call(self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any):
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        place = path.format(gw=self.gateway)
        answer = requests.request(method, self.url + place, headers=sent, timeout=DEADLINE, **options)
        check_documented(method, path.removeprefix("/v1").replace("{gw}", "{gateway}"), answer)
        return answer

    def push(self, *deltas: dict[str, Any], cursor: str = "0"):
        body = {"clientId": self.client_id, "deltas": list(deltas), "lastSeenHlc": cursor}
        return self.call("POST", "/sync/{gw}/push", json=body)

    def pull(self, since: str = "0", **query: Any):
        return self.call("GET", "/sync/{gw}/pull", params={"since": since, "clientId": self.client_id, **query})

    def admin(self) -> Client:
        return Client(self.url, self.gateway, "an-admin", "admin")


@dataclass
class Served:
    """A server in a thread of this process."""

    url: str
    engine: Engine
    settings: GatewaySettings

    def client(self, client_id: str = "client-1", gateway: str | None = None, **claims: Any) -> Client:
        """A client of a new gateway, or of the given one."""
        return Client(self.url, gateway or f"gw-{next(GATEWAY_NUMBERS)}", client_id, claims=claims)


@dataclass
class Process:
    """`python -m gateway` in a separate process."""

    process: Forked
    url: str
    log: Path

    def client(self, client_id: str = "client-1", gateway: str = "gw", **claims: Any) -> Client:
        return Client(self.url, gateway, client_id, claims=claims)

    def internal(self, method: str, **arguments: Any) -> Any:
        """Call the staging store as the pipeline does."""
        headers = {"Authorization": f"Bearer {SERVICE}"}
        url = f"{self.url}/internal/staging/{method}"
        answer = requests.post(url, json=arguments, headers=headers, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def lines(self) -> list[dict[str, Any]]:
        return read_log(self.log)


def read_log(log: Path) -> list[dict[str, Any]]:
    whole = log.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)
    return found


def raw(url: str, *lines: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send raw latin-1 bytes; return status, headers and body."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), DEADLINE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in headers), rest
