"""The sections of `lakesync.toml` about gateways and connectors: each setting with its type, default and meaning.

`Config` (settings.py) contains them, and everything that has settings reads them there. The docstring below a setting
is its description in docs/configuration.md, which `lakesync.config.reference` generates.

A *gateway* is one app's stream of changes; one server has many. Its clients *push* their *deltas* (changes of rows) to
the *staging* store. *Sync rules* decide by the claims of a client's token which rows the client sees. A *connector* is
an external system that is polled or runs *actions*, the requests that clients send to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_serializer,
    model_validator,
)

from lakesync.model.validation import GATEWAY_ID, check_keys_url

Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the system choose a free one."""

ConnectorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Name of a connector, unique in its gateway."""

Algorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]
"""An algorithm by which tokens are signed; only HS256 uses a shared secret."""

REVEAL = {"reveal": "secrets"}
"""The serialisation context that writes secrets in plain text, for the environment of a child process."""

_MIB = 1 << 20
"""Bytes in a mebibyte."""


def _as_tuple(value: Any) -> Any:
    """Return a string as a tuple with one element; any other value unchanged, for pydantic to validate."""
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)]
"""One string, or a list of strings."""


class Section(BaseModel):
    """The base of all sections: immutable, and without unknown settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DeclaredEnterRule(Section):
    """A gateway that an issuer's tokens may enter although they do not name it."""

    gateway: Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")]
    """The gateway id."""
    claim: str | None = None
    """Path of a claim that decides; unset: every token of the issuer may enter."""
    values: Texts = ()
    """Accepted values of that claim; a token needs one of them."""

    @model_validator(mode="after")
    def _check_claim(self) -> DeclaredEnterRule:
        if (self.claim is None) != (not self.values):
            raise ValueError("claim and values depend on each other; set both, or neither to admit every token")
        return self


class DeclaredIssuer(Section):
    """`[[gateway.issuers]]`: a login provider or backend that signs tokens, and the meaning of their claims.

    Without `jwks_url`, `keys` and `secret`, the keys are read from the issuer's discovery document.
    """

    issuer: Annotated[str, Field(min_length=1)]
    """The `iss` claim of its tokens, compared exactly."""
    audience: Texts = ()
    """Accepted `aud` values; a token needs one of them. Empty: only tokens without `aud` are accepted."""
    jwks_url: str | None = None
    """URL of its JSON Web Key Set."""
    keys: str | None = None
    """Path of a file with a JSON Web Key Set, or with public keys in PEM."""
    secret: SecretStr | None = None
    """Shared secret for HS256, as a reference."""
    algorithms: tuple[Algorithm, ...] = ()
    """Accepted signature algorithms; unset: HS256 with a secret, else RS256, ES256 and EdDSA."""
    client_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Path of the claim with the client id."""
    client_prefix: str = ""
    """Prefix for client ids, so that equal ids of two issuers stay different clients."""
    gateway_claim: Annotated[str, Field(min_length=1)] | None = None
    """Path of a required claim with one gateway id or a list; unset: `gw`, which is optional."""
    role_claim: Annotated[str, Field(min_length=1)] | None = None
    """Path of the claim with one role or a list; unset: every token has the role `client`."""
    admin_roles: Texts = ("admin",)
    """Values of the role claim that mean `admin`; any other value means `client`."""
    enter: tuple[DeclaredEnterRule, ...] = ()
    """Gateways that tokens may enter although they do not name them. The URL of the request chooses one."""
    require: dict[str, Texts] = {}
    """Claim path → accepted values; a token needs one value of each claim."""

    @model_validator(mode="before")
    @classmethod
    def _choose_algorithms(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("algorithms"):
            return data
        return {**data, "algorithms": ["HS256"] if data.get("secret") is not None else ["RS256", "ES256", "EdDSA"]}

    @model_validator(mode="after")
    def _check_keys(self) -> DeclaredIssuer:
        key_settings = [name for name in ("jwks_url", "keys", "secret") if getattr(self, name) is not None]
        if len(key_settings) > 1:
            raise ValueError(
                f"{' and '.join(key_settings)} are set, but keys have one source; keep one of these settings"
            )
        uses_secret = "HS256" in self.algorithms
        if uses_secret != (self.secret is not None) or (uses_secret and len({*self.algorithms}) > 1):
            raise ValueError("HS256 requires secret and excludes other algorithms, which use public keys")
        fault = None
        if self.jwks_url is not None:
            fault = check_keys_url("jwks_url", self.jwks_url)
        elif not key_settings:  # the discovery document's URL begins with `issuer`
            fault = check_keys_url("issuer", self.issuer)
        if fault is not None:
            raise ValueError(fault)
        return self

    @field_serializer("secret", when_used="json")
    def _serialize_secret(self, secret: SecretStr | None, info: FieldSerializationInfo) -> str | None:
        """Write the secret itself only into the environment of a child process."""
        if secret is None:
            return None
        return secret.get_secret_value() if info.context == REVEAL else "(set)"


class GatewaySection(Section):
    """`[gateway]`: the HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8787
    """Port to listen on; 0: any free port."""
    url: str | None = None
    """URL by which the pipeline reaches the gateway; `lakesync up` sets it. The gateway itself ignores it."""
    auto_create: bool = True
    """Create a gateway when the first valid token names it; false: only `[gateways]` are served."""
    cors_origins: tuple[str, ...] = ("*",)
    """Origins whose pages may call the gateway. `*`: every origin; without a secret, only those of this machine."""
    issuers: tuple[DeclaredIssuer, ...] = ()
    """Login providers and backends whose tokens are accepted besides those signed with `jwt_secret`."""


class RemoteSection(Section):
    """`[remote]`: the gateway that `lakesync` commands call."""

    url: str | None = None
    """Its URL; unset: the gateway of a running `lakesync up` on the data folder, else the address in `[gateway]`."""
    gateway: str | None = None
    """The gateway id, unless a token names one; unset: the only gateway of `[gateways]`."""


class StagingSection(Section):
    """`[staging]`: the store that the gateway commits pushes to."""

    url: str = ""
    """`sqlite:///ABSOLUTE/FOLDER`, `postgresql://…` or `memory://`; empty: SQLite in the data folder."""


class DeclaredConnector(Section):
    """`[connectors.NAME]`: a connector that the gateway registers when it starts.

    In the file, its settings have the name of its type as key, as in a registration: `jira = { domain = "example" }`.
    """

    gateway: Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")]
    """The gateway that it belongs to."""
    type: str
    """Its type; `lakesync connectors types` lists them."""
    settings: dict[str, Any] = {}
    """The settings of its type. Secrets are references."""
    ingest: dict[str, Any] | None = None
    """How it is polled; unset: it only runs actions."""

    @model_validator(mode="before")
    @classmethod
    def _find_settings(cls, data: Any) -> Any:
        """Move the settings from the key that is named like the type to `settings`."""
        kind = data.get("type") if isinstance(data, Mapping) else None
        if not isinstance(kind, str) or kind not in data or kind in cls.model_fields:
            return data
        return {**{name: value for name, value in data.items() if name != kind}, "settings": data[kind]}

    def body(self, name: str) -> dict[str, Any]:
        """Return the body of a registration under the connector's `name`."""
        registration = {"name": name, "type": self.type, self.type: self.settings}
        return registration if self.ingest is None else {**registration, "ingest": self.ingest}


class ConnectorsSection(Section):
    """`[connectors]`: what connectors may reference and call, and `[connectors.NAME]`: connectors."""

    allowed_references: tuple[str, ...] = ("env:CONNECTOR_{gateway}_*",)
    """Patterns of the secret references that a registered connector may use; `{gateway}` is its gateway.

    In a variable pattern with `{gateway}`, `*` matches letters and digits only, so that no variable belongs to two
    gateways. `google:GATEWAY` lends the server's Google identity to the BigQuery connectors of a gateway. Admins of a
    gateway can read through its connectors what these patterns allow.
    """
    allowed_hosts: tuple[str, ...] = ("*",)
    """Hosts that connectors may call: names with `*`, and networks, which may be private. `*` alone means every host
    with a public address."""
    declared: dict[ConnectorName, DeclaredConnector] = {}
    """The tables `[connectors.NAME]`, by name."""

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, data: Any) -> Any:
        """Move the tables `[connectors.NAME]` to `declared`."""
        if not isinstance(data, Mapping):
            return data
        tables = {name: each for name, each in data.items() if name not in cls.model_fields and isinstance(each, dict)}
        others = {name: each for name, each in data.items() if name not in tables}
        return {**others, "declared": {**data.get("declared", {}), **tables}} if tables else data


class DeclaredGateway(Section):
    """`[gateways.NAME]`: a gateway that is created when the server starts."""

    write_scope: Literal["any", "visible", "rules"] = "visible"
    """Rows that a client may push to, if the gateway has sync rules.

    `visible`: rows that the rules show to the client, and new rows. `rules`: the same, and the rules must also show the
    row after the push. `any`: every row; a client can then make any row visible to itself and read it.
    """
    namespace: str | None = None
    """Namespace of its state tables; unset: `lake.namespace`, which gateways share. It cannot change after the
    gateway's first deltas reached the lake."""
    schemas: tuple[str, ...] = ()
    """JSON files with one table schema each. New tables and columns are registered when the gateway starts."""
    rules: str | None = None
    """JSON file with sync rules, activated when the gateway starts if it never had rules."""


class LimitsSection(Section):
    """`[limits]`: bounds for requests, connections and staged data."""

    max_body_bytes: PositiveInt = _MIB
    """Bytes in a request body after decompression."""
    max_deltas: PositiveInt = 10_000
    """Deltas in one push of a client."""
    max_backpressure_bytes: PositiveInt = 1 << 30
    """Unflushed bytes per gateway above which pushes are rejected; unset: 1 GiB or a tenth of the free disk, whichever
    is less."""
    requests_per_second: PositiveFloat = 1000.0
    """Requests per client and second, averaged over ten seconds."""
    request_timeout_seconds: PositiveFloat = 30.0
    """Seconds until a response begins, between the parts of a streamed one, and for requests in flight at shutdown."""
    max_actions: PositiveInt = 100
    """Actions in one request."""
    action_timeout_seconds: PositiveFloat = 20.0
    """Seconds that a request waits for its actions. They continue after that."""
    action_lease_seconds: PositiveFloat = 30.0
    """Seconds after which an action whose process died may be retried."""
    action_retention_days: PositiveFloat = 7.0
    """Days for which the result of an action is kept for repeated requests."""
    websocket_connections: PositiveInt = 2000
    """WebSocket connections of one server at the same time."""
    websocket_connections_per_gateway: PositiveInt = 1000
    """WebSocket connections of one gateway at the same time."""
    websocket_connections_per_client: PositiveInt = 20
    """WebSocket connections of one client at the same time."""
    websocket_messages_per_second: PositiveFloat = 50.0
    """WebSocket messages per client and second, averaged over ten seconds."""
    websocket_slow_reader_seconds: PositiveFloat = 10.0
    """Seconds in which a client must read 64 KiB of the data that is queued for it, or be disconnected."""
    min_free_disk_bytes: NonNegativeInt = 64 * _MIB
    """Free bytes on the disk of a SQLite staging store below which the gateway is not ready."""


class ShardConfig(Section):
    """`[shard_config]`: tables that have a staging store of their own; `LAKESYNC_SHARD_CONFIG` has the same as JSON."""

    shards: dict[str, str] = {}
    """Table → shard."""
    default: str
    """The shard of every other table; its store is the one at `staging.url`."""
    stores: dict[str, str] = {}
    """Shard → URL of its store; without a URL, a folder with the shard's name in the default shard's folder."""
