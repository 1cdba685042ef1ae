"""A gateway that trusts two login providers, a key file and a secret, and the interfaces that accept a token."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import requests
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lakesync import config
from lakesync.auth import Issuer, configured_issuers
from lakesync.auth.keys import KeySet
from lakesync.testing.servers.oidc import OidcProvider
from tests.integration.gateway_support import DEADLINE

AUDIENCE = "https://sync.example.com"
BACKEND = "https://backend.example.com"
SHARED = "https://shared.example.com"
SHARED_SECRET = "the secret that is shared with one backend"
FILE_KEY = ed25519.Ed25519PrivateKey.generate()
UNKNOWN_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)

_UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "bGFrZXN5bmMgaXMgc2FmZQ==",
}


def issuers_of(folder: Path, *sections: dict[str, Any], cooldown: float = 0.0) -> tuple[Issuer, ...]:
    """Issuers as the settings declare them; unknown keys are fetched without a delay."""
    declared = config.load({"data_dir": folder, "gateway": {"issuers": list(sections)}})
    return tuple(
        replace(each, key_set=KeySet(each.key_set.load, each.key_set.keys, name=str(each.issuer), cooldown=cooldown))
        for each in configured_issuers(declared)
    )


def sections_of(first: OidcProvider, second: OidcProvider, folder: Path) -> list[dict[str, Any]]:
    """The `[auth]` sections of lakesync.toml for every signer of this gateway's tokens."""
    pem = folder / "backend.pem"
    pem.write_bytes(FILE_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return [
        {"issuer": first.issuer, "audience": AUDIENCE, "gateway_claim": "https://lakesync.example.com/gateway"},
        {"issuer": second.issuer, "jwks_url": second.url + second.vendor.jwks_path, "audience": "lakesync"},
        {"issuer": BACKEND, "keys": str(pem), "role_claim": "role"},
        {"issuer": SHARED, "secret": SHARED_SECRET},
    ]


def shown_over(way: str, url: str, token: str) -> requests.Response:
    """Return the gateway's answer to a token that is sent over one of its interfaces."""
    bearer = {"Authorization": f"Bearer {token}"}
    path, headers = {
        "HTTP": ("/sync/gw/metrics", bearer),
        "WebSocket": ("/sync/gw/ws", bearer | _UPGRADE),
        "WebSocket, in its query": (f"/sync/gw/ws?token={token}", _UPGRADE),
        "admin route": ("/admin/schema/gw", bearer),
        "console": ("/admin/metrics/gw?clients=10", bearer | {"Origin": url, "Sec-Fetch-Site": "same-origin"}),
    }[way]
    answer = requests.get(url + path, headers=headers, timeout=DEADLINE, stream=True)
    if answer.status_code != requests.codes.switching_protocols:
        assert answer.content is not None
    answer.close()
    return answer


WAYS = ("HTTP", "WebSocket", "WebSocket, in its query", "admin route", "console")


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def by_hand(header: dict[str, Any], payload: dict[str, Any], key: bytes) -> str:
    """An HMAC-signed token with arbitrary header and payload."""
    body = f"{part(header)}.{part(payload)}"
    return f"{body}.{part(hmac.digest(key, body.encode(), 'sha256'))}"


def payload_of(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


Forge = Callable[[OidcProvider, OidcProvider], str]
