"""The gateway that a command talks to: which one, as whom, and its HTTP API."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import quote

import msgspec
import requests

from lakesync.cli.generated_secrets import kept
from lakesync.cli.options import settings
from lakesync.client.errors import UnreachableError
from lakesync.client.transports.http import HttpTransport, refusal
from lakesync.client.transports.tokens import checked
from lakesync.client.transports.tokens import claims as claims_in
from lakesync.model.errors import AuthError, ConfigurationError
from lakesync.model.validation import check_address, check_gateway_id

if TYPE_CHECKING:
    from lakesync.config import Config

Role = Literal["client", "admin"]

CLIENT_ID = "lakesync-cli"
"""Who a command is where nobody says, and the secret is at hand."""

_WHICH = "which gateway? Give --gateway ID, set LAKESYNC_REMOTE_GATEWAY, or write it into [remote] of lakesync.toml"
_SECONDS = 600.0
"""How long the token of one command is good."""
_TIMEOUT = 60.0


class Remote:
    """A running gateway, seen through its routes."""

    def __init__(self, config: Config, url: str, gateway: str, token: str | None) -> None:
        self.config = config
        self.url = url.rstrip("/")
        self.gateway = gateway
        self.token = token
        self._session = requests.Session()

    @property
    def client_id(self) -> str:
        """Whom the token names."""
        return str(claims_in(self.token or "").get("sub") or CLIENT_ID)

    def get(self, path: str, **query: Any) -> Any:
        """`GET` a route; `{gateway}` in its path is this one. The decoded JSON of the answer.

        Raises:
            UnreachableError: no gateway's answer came.
            LakeSyncError: what it answered, as the class that has its code.
        """
        return self._ask("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """`POST` a route, with a JSON body."""
        return self._ask(
            "POST", path, json=body, params={name: each for name, each in query.items() if each is not None}
        )

    def delete(self, path: str) -> Any:
        """`DELETE` a route."""
        return self._ask("DELETE", path)

    def transport(self) -> HttpTransport:
        """What a client pushes and pulls by."""
        return HttpTransport(self.url, self.gateway, self.token)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        where = self.url + path.replace("{gateway}", quote(self.gateway, safe=""))
        try:
            answer = self._session.request(method, where, headers=headers, timeout=_TIMEOUT, **options)
        except requests.RequestException as error:
            raise UnreachableError(f"no gateway answers at {self.url}: {_brief(error)}") from error
        if not answer.ok:
            raise refusal(answer.status_code, answer.content, answer.headers)
        try:
            told = msgspec.json.decode(answer.content)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"{where} gave no JSON: is it a gateway's address?") from error
        return _Answer(told, where) if isinstance(told, dict) else told


class _Answer(dict[str, Any]):
    """A gateway's; whatever else answers JSON is told by what it lacks."""

    def __init__(self, told: dict[str, Any], where: str) -> None:
        super().__init__(told)
        self._where = where

    def __missing__(self, name: str) -> NoReturn:
        raise UnreachableError(f"the answer of {self._where} has no {name!r}: is it a gateway of this version?")


def connect(
    url: str | None,
    gateway: str | None,
    token_file: Path | None,
    data: Path | None,
    *,
    role: Role = "admin",
    client: str | None = None,
    named: bool = True,
    seconds: float = _SECONDS,
    claims: Mapping[str, str | list[str]] | None = None,
) -> Remote:
    """The gateway that options, variables and files name, with a token for it.

    Args:
        role: of a token that has to be made.
        client: whom it is made for; None: the commands themselves.
        named: whether a gateway id is needed.
        seconds: for how long that token is good.
        claims: what it says besides.

    Raises:
        ConfigurationError: nobody says which gateway, its id or address cannot be one, or the token's file cannot be
            read.
    """
    config = settings(data)
    token = _given_token(config, token_file)
    if claims and (token is not None or not secret_of(config)):
        raise ConfigurationError(
            "--claim is for a token that is made here: "
            + ("one is given, which says its own" if token is not None else "there is no secret to sign one with")
        )
    chosen = _chosen(config, gateway, token)
    if chosen is None and named:
        raise ConfigurationError(_WHICH)
    if token is None and chosen is not None:
        secret = secret_of(config)  # where there is none, the server may need none
        token = (
            sign(secret, chosen, client or CLIENT_ID, role, seconds=seconds, claims=claims or {}) if secret else None
        )
    if client is not None and token is not None and claims_in(token).get("sub") != client:
        raise AuthError(
            f"the token is for client {claims_in(token).get('sub')!r}, not for {client!r}: leave --client out"
        )
    return Remote(config, _checked(url) if url else address(config), chosen or "", token)


def which_gateway(config: Config, gateway: str | None) -> str:
    """The gateway that an option names, else the token, else the settings: for commands that need no address.

    Raises:
        ConfigurationError: nobody says which, or it cannot be an id.
    """
    chosen = _chosen(config, gateway, _given_token(config, None))
    if chosen is None:
        raise ConfigurationError(_WHICH)
    return chosen


def running(config: Config, service: str) -> dict[str, Any]:
    """What a `lakesync up` on the data folder says of one of its services; empty where none runs."""
    try:
        told = json.loads((config.data_dir / "up.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    found: dict[str, Any] = told.get(service) or {}
    return found


def address(config: Config) -> str:
    """Where the gateway is: as `[remote]` says, or a `lakesync up` on the data folder, else `[gateway]`.

    Raises:
        ConfigurationError: it cannot be an address.
    """
    return _checked(config.remote.url or own_address(config))


def own_address(config: Config) -> str:
    """Where the gateway is that owns the store of these settings."""
    known = config.gateway.url or running(config, "gateway").get("url")
    if known:
        return str(known)
    return local_url(config.gateway.host, config.gateway.port)


def local_url(host: str, port: int) -> str:
    """Return where a program on this machine reaches a server that listens on an address, or on all of them."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 a comparison
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _checked(url: str) -> str:
    wrong = check_address("the gateway's address", url)
    if wrong is not None:
        raise ConfigurationError(wrong)
    return url


def _chosen(config: Config, gateway: str | None, token: str | None) -> str | None:
    chosen = gateway or claims_in(token or "").get("gw") or config.remote.gateway or config.sole_gateway
    wrong = None if chosen is None else check_gateway_id(str(chosen))
    if wrong is not None:
        raise ConfigurationError(wrong)
    return chosen


def _given_token(config: Config, token_file: Path | None) -> str | None:
    if token_file is None:
        return checked(config.token.get_secret_value()) if config.token else None
    try:
        token = token_file.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise ConfigurationError(f"--token-file {token_file} cannot be read: {error.strerror}") from error
    if not token:
        raise ConfigurationError(f"--token-file {token_file} is empty: put a token there")
    return checked(token)


def secret_of(config: Config) -> str | None:
    """What tokens are signed with: as configured, or as `lakesync up` made it in the data folder."""
    return config.jwt_secret.get_secret_value() if config.jwt_secret else kept(config.data_dir).get("jwt_secret")


def secrets_of(config: Config) -> list[str]:
    """What a gateway with these settings verifies its own tokens with."""
    previous = config.jwt_secret_previous
    return [each for each in (secret_of(config), previous.get_secret_value() if previous else None) if each]


def sign(secret: str, gateway: str, client: str, role: str, *, seconds: float, claims: Mapping[str, Any]) -> str:
    """A token."""
    import jwt

    payload = {**claims, "sub": client, "gw": gateway, "role": role, "exp": int(time.time() + seconds)}
    return jwt.encode(payload, secret, algorithm="HS256")


def _brief(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    cause = getattr(reason, "reason", reason)
    return str(cause).rpartition(": ")[2] or type(error).__name__
