"""The connection of a command to a gateway: choice of gateway and token, and requests to its HTTP API.

Commands that call a gateway use `connect`, most by `ConnectionOptions.connect`. Other commands use the functions about
URLs and tokens. One gateway server, at a URL, serves several gateways: the streams of changes of several apps, each
with an id.

The claims of a token are what it says about its bearer: `sub` is the client id, `gw` the gateway id. A command without
a token signs one itself, with the gateway's own secret, if it is on the gateway's machine and can read the secret.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import quote

import msgspec

from lakesync.cli.data_folder import read_secrets, running_service
from lakesync.client.errors import UnreachableError
from lakesync.client.transports.http import HttpTransport
from lakesync.client.transports.tokens import check_token
from lakesync.client.transports.tokens import claims as claims_in
from lakesync.model.errors import AuthError, ConfigurationError
from lakesync.model.validation import check_address, check_gateway_id

if TYPE_CHECKING:
    from lakesync.config import Config

Role = Literal["client", "admin"]
"""The role in a token: admins may call the `/admin` routes."""

CLIENT_ID = "lakesync-cli"
"""Client id of the tokens that commands sign for themselves."""

_NO_GATEWAY = "no gateway is chosen; give --gateway ID, set LAKESYNC_REMOTE_GATEWAY, or set [remote] gateway"
_NO_CLAIMS = "--claim needs a token that is signed here, but"
_TOKEN_SECONDS = 600.0
"""Lifetime of a token that a command signs for itself."""
_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for a connection, and for each part of a response."""


class GatewayConnection:
    """Requests to the routes of one gateway, with a token."""

    def __init__(self, config: Config, url: str, gateway: str, token: str | None) -> None:
        """Prepare requests; none is sent yet.

        Args:
            config: the settings.
            url: the gateway server's URL.
            gateway: the gateway's id; empty for routes that do not name a gateway.
            token: the bearer token; None to send requests without one.
        """
        self.config = config
        self.url = url.rstrip("/")
        self.gateway = gateway
        self.token = token
        self.transport = HttpTransport(self.url, gateway, token, timeout=_TIMEOUT_SECONDS)
        """Sends pushes and pulls, and the requests of this object, with the token."""

    @property
    def client_id(self) -> str:
        """The client id in the token (`sub`); `lakesync-cli` if there is no token, or none in it."""
        return str(claims_in(self.token or "").get("sub") or CLIENT_ID)

    def get(self, path: str, **query: Any) -> Any:
        """Send a GET request.

        Args:
            path: the route; `{gateway}` in it is replaced by the gateway id.
            query: query parameters; those that are None are left out.

        Returns:
            The decoded JSON of the response. If it is an object, reading a key that it lacks raises UnreachableError,
            because then another server or another version answered.

        Raises:
            UnreachableError: no gateway answers.
            LakeSyncError: the gateway returned an error; its code decides the class.
        """
        return self._request("GET", path, params=query)

    def post(self, path: str, body: Any = None, *, name: str | None = None, **query: Any) -> Any:
        """Send a POST request. Everything else is as for `get`.

        Args:
            path: the route.
            body: the JSON body; None: no body.
            name: the last part of the path, after a slash: any text except `.` and `..`. None: the path is complete.
            query: query parameters.
        """
        return self._request("POST", path, name, json=body, params=query)

    def delete(self, path: str, name: str) -> Any:
        """Send a DELETE request to `PATH/NAME`, as for `post`. Everything else is as for `get`."""
        return self._request("DELETE", path, name)

    def write_scope_warning(self) -> str | None:
        """Return a warning if clients can bypass the gateway's sync rules by writing; None if they cannot.

        Sync rules decide which rows a client sees. The write scope says which rows it may write. With `any`, it can
        change a row that it does not see so that the rules show it, and then read it.
        """
        if self.get("/admin/settings/{gateway}")["writeScope"] != "any":
            return None
        return (
            "the write scope is `any`: a client can make any row visible to itself and read it; set `visible` or "
            "`rules`"
        )

    def _request(self, method: str, path: str, name: str | None = None, **options: Any) -> Any:
        """Send a request and return the decoded JSON of the response; `options` are those of requests."""
        url = self.url + path.replace("{gateway}", quote(self.gateway, safe=""))
        if name is not None:
            if name in ("", ".", ".."):  # an HTTP client would leave it out of the path
                raise ConfigurationError(f"nothing can be named {name!r}; give another name")
            url += f"/{quote(name, safe='')}"
        response = self.transport.request(method, url, allow_redirects=True, **options)
        try:
            decoded = msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"{url} did not return JSON; check that it is a gateway's URL") from error
        return _JsonObject(decoded, url) if isinstance(decoded, dict) else decoded


class _JsonObject(dict[str, Any]):
    """The JSON object of a response. Reading a missing key raises UnreachableError."""

    def __init__(self, content: dict[str, Any], url: str) -> None:
        super().__init__(content)
        self._url = url

    def __missing__(self, name: str) -> NoReturn:
        raise UnreachableError(
            f"the response of {self._url} has no {name!r}; check that it is a gateway of this version"
        )


def connect(
    config: Config,
    *,
    url: str | None = None,
    gateway: str | None = None,
    token_file: Path | None = None,
    role: Role = "admin",
    client: str | None = None,
    gateway_required: bool = True,
    token_seconds: float = _TOKEN_SECONDS,
    claims: Mapping[str, str | list[str]] | None = None,
) -> GatewayConnection:
    """Choose a gateway and a token by options, variables and files. No request is sent yet.

    Args:
        config: the settings.
        url: the gateway's URL (`--url`); None for that of the settings, or of a running `lakesync up`.
        gateway: the gateway's id (`--gateway`); None for that of the token, or of the settings.
        token_file: the file with the token (`--token-file`); None for LAKESYNC_TOKEN, else a token is signed here.
        role: the role of a token that is signed here.
        client: the client id of a token that is signed here; a given token must have it too. None: a signed token has
            `lakesync-cli`, a given one may have any.
        gateway_required: whether the command needs a gateway id. Without an id, no token is signed.
        token_seconds: the lifetime of a token that is signed here.
        claims: further claims of a token that is signed here.

    Raises:
        ConfigurationError: no gateway is chosen, its id or URL is invalid, the token's file cannot be read, or claims
            are passed although no token is signed here.
        AuthError: the given token is for another client than `client`, or cannot be sent in a header.
    """
    token = _configured_token(config, token_file)
    secret = signing_secret(config) if token is None else None
    if claims and token is not None:
        raise ConfigurationError(f"{_NO_CLAIMS} a token is given, which has its own claims")
    if claims and not secret:
        raise ConfigurationError(
            f"{_NO_CLAIMS} there is no secret to sign with: set the gateway's LAKESYNC_JWT_SECRET here, or start the "
            "gateway with one"
        )
    chosen = _chosen_gateway(config, gateway, token)
    if chosen is None and gateway_required:
        raise ConfigurationError(_NO_GATEWAY)
    if token is None and chosen is not None and secret:  # without a secret, the gateway may need no token
        token = sign_token(secret, chosen, client or CLIENT_ID, role, seconds=token_seconds, claims=claims or {})
    if client is not None and token is not None and claims_in(token).get("sub") != client:
        raise AuthError(
            f"the token is for client {claims_in(token).get('sub')!r}, not for {client!r}; leave out --client"
        )
    return GatewayConnection(config, _checked_url(url) if url else gateway_url(config), chosen or "", token)


def choose_gateway(config: Config, gateway: str | None) -> str:
    """Return the gateway id of the option, else of the token, else of the settings.

    For commands that do not call the gateway.

    Raises:
        ConfigurationError: no gateway is chosen, or the id is invalid.
    """
    chosen = _chosen_gateway(config, gateway, _configured_token(config, None))
    if chosen is None:
        raise ConfigurationError(_NO_GATEWAY)
    return chosen


def gateway_url(config: Config) -> str:
    """Return the gateway's URL: `[remote] url`, else `local_gateway_url`.

    Raises:
        ConfigurationError: the URL is invalid.
    """
    return _checked_url(config.remote.url or local_gateway_url(config))


def local_gateway_url(config: Config) -> str:
    """Return the URL of the gateway that owns the staging store of these settings, the database of pushed changes.

    It is `[gateway] url`, else that of a running `lakesync up`, else made of `[gateway] host` and `port`.
    """
    url = config.gateway.url or running_service(config, "gateway").get("url")
    if url:
        return str(url)
    return local_url(config.gateway.host, config.gateway.port)


def local_url(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens on `host`, which may be a wildcard address."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 a comparison
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def signing_secret(config: Config) -> str | None:
    """Return the secret that signs tokens: the configured one, else the one that `lakesync up` generated."""
    if config.jwt_secret:
        return config.jwt_secret.get_secret_value()
    return read_secrets(config.data_dir).get("jwt_secret")


def verification_secrets(config: Config) -> list[str]:
    """Return the secrets with which a gateway with these settings verifies tokens: the present and the previous one."""
    previous = config.jwt_secret_previous
    return [each for each in (signing_secret(config), previous.get_secret_value() if previous else None) if each]


def sign_token(secret: str, gateway: str, client: str, role: str, *, seconds: float, claims: Mapping[str, Any]) -> str:
    """Return a signed token.

    Args:
        secret: the HS256 secret.
        gateway: the gateway id.
        client: the client id.
        role: `client` or `admin`.
        seconds: the token's lifetime.
        claims: further claims.
    """
    import jwt

    payload = {**claims, "sub": client, "gw": gateway, "role": role, "exp": int(time.time() + seconds)}
    return jwt.encode(payload, secret, algorithm="HS256")


def _checked_url(url: str) -> str:
    """Return a URL; raise ConfigurationError if it is not one that a gateway can have."""
    problem = check_address("the gateway's address", url)
    if problem is not None:
        raise ConfigurationError(problem)
    return url


def _chosen_gateway(config: Config, gateway: str | None, token: str | None) -> str | None:
    """Return the gateway id of the option, else of the token, else of the settings; None if none is configured.

    Raises:
        ConfigurationError: the id is invalid.
    """
    chosen = gateway or claims_in(token or "").get("gw") or config.remote.gateway or config.sole_gateway
    if chosen is None:
        return None
    problem = check_gateway_id(str(chosen))
    if problem is not None:
        raise ConfigurationError(problem)
    return str(chosen)  # the claim of a token may be a number


def _configured_token(config: Config, token_file: Path | None) -> str | None:
    """Return the token of `--token-file`, else of LAKESYNC_TOKEN; None if neither is set.

    Raises:
        ConfigurationError: the file cannot be read, or is empty.
        AuthError: the token contains a character that a header cannot have.
    """
    if token_file is None:
        return check_token(config.token.get_secret_value()) if config.token else None
    try:
        token = token_file.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise ConfigurationError(f"--token-file {token_file} cannot be read: {error.strerror}") from error
    if not token:
        raise ConfigurationError(f"--token-file {token_file} is empty; write a token into it")
    return check_token(token)
