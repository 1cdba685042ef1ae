"""The sections of `lakesync.toml`, each setting with its type and default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
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

Algorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]

REVEAL = {"reveal": "secrets"}
"""The context of a serialisation that a child process is given."""

_MIB = 1 << 20


def _texts(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts)]
"""One text, or a list of them."""


class _Section(BaseModel):
    model_config = {"frozen": True, "extra": "forbid"}


class DeclaredEntry(_Section):
    """A gateway that tokens of an issuer may enter without naming it."""

    gateway: Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")]
    claim: str | None = None
    """Path of a claim; unset: every token may enter."""
    values: Texts = ()
    """The values of that claim, of which a token must have one."""

    @model_validator(mode="after")
    def _check_claim(self) -> DeclaredEntry:
        if (self.claim is None) != (not self.values):
            raise ValueError("claim and values belong together: set both, or neither to let every token enter")
        return self


class DeclaredIssuer(_Section):
    """`[[gateway.issuers]]`: who signs tokens besides the server's own secret, and what their claims mean.

    Without `jwks_url`, `keys` and `secret` the keys are those that the issuer's discovery document names.
    """

    issuer: Annotated[str, Field(min_length=1)]
    """The `iss` of its tokens, letter by letter."""
    audience: Texts = ()
    """One of these is in a token's `aud`; empty: only tokens without `aud` are taken."""
    jwks_url: str | None = None
    """Where its JSON Web Key Set is."""
    keys: str | None = None
    """A file with a JSON Web Key Set, or with public keys in PEM."""
    secret: SecretStr | None = None
    """Signs its tokens by HS256."""
    algorithms: tuple[Algorithm, ...] = ()
    """By which it signs; unset: HS256 with a secret, else RS256, ES256 and EdDSA."""
    client_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Path of the client id."""
    client_prefix: str = ""
    """Put before client ids, where two issuers may know different people by one id."""
    gateway_claim: Annotated[str, Field(min_length=1)] | None = None
    """Path of a gateway id, or of a list of them, which a token must have; unset: `gw`, which it may have."""
    role_claim: Annotated[str, Field(min_length=1)] | None = None
    """Path of a role, or of a list of them; unset: every token is a client's."""
    admin_roles: Texts = ("admin",)
    """Roles that make an admin; any other is a client's."""
    enter: tuple[DeclaredEntry, ...] = ()
    """Which gateways tokens may enter, by the gateway that the request's URL names."""
    require: dict[str, Texts] = {}
    """Path of a claim → values of which a token must have one."""

    @model_validator(mode="before")
    @classmethod
    def _choose_algorithms(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("algorithms"):
            return data
        return {**data, "algorithms": ["HS256"] if data.get("secret") is not None else ["RS256", "ES256", "EdDSA"]}

    @model_validator(mode="after")
    def _check_keys(self) -> DeclaredIssuer:
        given = [name for name in ("jwks_url", "keys", "secret") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are set: keys come from one place, leave the others out")
        if (self.secret is not None) != ("HS256" in self.algorithms) or {"HS256"} < {*self.algorithms}:
            raise ValueError("HS256 needs secret and goes with no other algorithm: a public key is not a secret")
        place = self.jwks_url if self.jwks_url is not None else None if given else self.issuer
        fault = check_keys_url("jwks_url" if given else "issuer", place) if place is not None else None
        if fault is not None:
            raise ValueError(fault)
        return self

    @field_serializer("secret", when_used="json")
    def _serialize_secret(self, secret: SecretStr | None, info: FieldSerializationInfo) -> str | None:
        """Shown only where a child process is given its settings."""
        if secret is None:
            return None
        return secret.get_secret_value() if info.context == REVEAL else "(set)"


class GatewaySection(_Section):
    """`[gateway]`: the HTTP server."""

    host: str = "127.0.0.1"
    port: Port = 8787
    url: str | None = None
    """Where the pipeline reaches the gateway; `lakesync up` sets it."""
    auto_create: bool = True
    """Whether the first valid token that names a gateway makes it."""
    cors_origins: tuple[str, ...] = ("*",)
    issuers: tuple[DeclaredIssuer, ...] = ()
    """Who signs tokens besides the server's own secret: login providers and apps' own backends."""


class RemoteSection(_Section):
    """`[remote]`: the gateway that the commands talk to."""

    url: str | None = None
    """Its address; unset: that of a `lakesync up` on the data folder, else the one that `[gateway]` gives."""
    gateway: str | None = None
    """The gateway id, where no token says it; unset: the only one of `[gateways]`."""


class StagingSection(_Section):
    """`[staging]`: the store that the gateway commits to."""

    url: str = ""
    """`sqlite:///ABSOLUTE/FOLDER` or `postgresql://…`; empty: SQLite in the data folder."""


class LakeSection(_Section):
    """`[lake]`: the Iceberg catalogue and where its tables stand."""

    catalog: str = "lake"
    catalog_uri: str = ""
    """`sqlite:////ABSOLUTE/FILE`, `postgresql://…`, or `http(s)://…` (REST); empty: SQLite in the data folder."""
    warehouse: str = ""
    """`file:///ABSOLUTE/FOLDER` or `s3://BUCKET/PREFIX`; empty: a folder in the data folder."""
    system_namespace: str = "lakesync"
    namespace: str = "tables"
    """Of the state tables."""
    checkpoints: str = ""
    """A folder for the frames of checkpoints, or `s3://BUCKET/PREFIX`; empty: one in the data folder."""


class SparkSection(_Section):
    """`[spark]`: the embedded Connect server, or where another one listens."""

    remote: str | None = None
    """`sc://HOST:PORT`; where it is set, `lakesync up` starts no Spark."""
    master: Annotated[str, Field(pattern=r"^(spark|k8s)://.+$|^yarn$")] | None = None
    """A cluster whose executors the embedded server uses, in place of its own cores; no folder is shared with them."""
    port: Port = 0
    ui_port: Port = 0
    """Of the embedded server's pages, on loopback; 0: `lakesync up` takes any free port."""
    ui_url: str | None = None
    """Where Spark's pages answer; `lakesync up` sets it for the embedded server."""
    token: SecretStr | None = None
    memory: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "2g"
    cores: PositiveInt | Literal["*"] = 2
    shuffle_partitions: PositiveInt = 4
    settings: dict[str, str] = {}
    """Further `spark.…` settings of the embedded server, as they are."""

    @property
    def address(self) -> str | None:
        """Where Spark Connect listens, as `sc://HOST:PORT`; None where no Spark is configured."""
        return self.remote or (f"sc://localhost:{self.port}" if self.port else None)


class DagsterSection(_Section):
    """`[dagster]`: the pipeline's daemon and pages."""

    home: Path = Path()
    """Empty: a folder in the data folder. A `dagster.yaml` of the user's own in it is used as it is."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address that the webserver listens on. Its pages ask for no password."""
    port: Port = 3000
    allowed_hosts: Texts = ()
    """Further Host headers under which the pages are served, `NAME` or `NAME:PORT`, such as that of a proxy."""
    storage_url: SecretStr | None = None
    """`postgresql://…` for Dagster's runs, events and schedules; unset: SQLite in `home`."""
    run_launcher: dict[str, Any] | None = None
    """`module`, `class` and `config` of a run launcher, as in `dagster.yaml`; unset: the run host of `lakesync up`."""
    url: str | None = None
    """Where the webserver answers; `lakesync up` sets it."""
    partitions_start: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """The first day (UTC) of the partitions, `YYYY-MM-DD`; unset: the day of the first push."""
    max_run_seconds: PositiveInt = 3600
    late_after_seconds: PositiveInt = 900
    """What was acknowledged and is not in the lake for longer is late, and so is a table that lacks it."""
    alert_webhook: SecretStr | None = None
    """Gets a JSON post for each failed run, and for each check that begins to fail or passes again."""
    alert_secret: SecretStr | None = None
    """Signs those posts, by HMAC-SHA256."""

    @model_validator(mode="after")
    def _check_storage(self) -> DagsterSection:
        if self.storage_url is not None and not self.storage_url.get_secret_value().startswith("postgresql://"):
            raise ValueError("storage_url must start with postgresql://; leave it out for SQLite in the data folder")
        launcher = self.run_launcher
        if launcher is not None and (
            not launcher.keys() <= {"module", "class", "config"}
            or not all(isinstance(launcher.get(name), str) for name in ("module", "class"))
            or not isinstance(launcher.get("config", {}), dict)
        ):
            raise ValueError(
                "run_launcher must be a table with module, class and, where the class has settings, config: { module = "
                '"dagster", class = "DefaultRunLauncher" }'
            )
        return self


class FlushSection(_Section):
    """`[flush]`: when what is staged goes to the lake, or where a gateway without a pipeline carries it itself."""

    to_uri: str = ""
    """An adapter's URI, such as `file:///ABSOLUTE/FOLDER`; empty: the pipeline flushes."""
    format: Literal["parquet", "json"] = "parquet"
    """Of the objects that `to_uri` gets."""
    queue: str = ""
    """An object store's URI for the work on destination tables that follows a flush, which `lakesync materialise`
    does; empty: the staging store keeps it, and the gateway does it."""
    bytes: PositiveInt = 4 * _MIB
    table_bytes: PositiveInt | None = None
    """Flush when so much waits of one table."""
    wide_columns: PositiveInt | None = None
    """Flush earlier while what waits has more columns a delta than this, on average."""
    wide_reduction: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """The part of `bytes` that is taken off then."""
    age_seconds: PositiveFloat = 30.0
    batch_deltas: PositiveInt | None = None
    """The most deltas in one batch; unset: a million of the pipeline's, of which each of Spark's tasks has a part, and
    250,000 of a server's own, which has all of them in memory."""


class MaintenanceSection(_Section):
    """`[maintenance]`: the upkeep of the lake's files, of staging's log and of Dagster's records."""

    schedule: str = "17 * * * *"
    """When it runs, as cron has it, in UTC; each part does something only where its threshold is passed."""
    min_files: Annotated[int, Field(ge=2)] = 8
    """Small files of a partition, or of a gateway's day in `deltas`, from which they are joined."""
    file_bytes: PositiveInt = 128 * _MIB
    """What files are joined up to."""
    delete_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Deleted rows in a file, of all, from which it is written anew."""
    max_manifests: PositiveInt = 20
    """Manifests of a table from which they are rewritten."""
    snapshot_hours: Annotated[float, Field(ge=2)] = 72.0
    """How long a snapshot can be read by its id; longer than any run, which commits against the one that it read."""
    cut_hours: PositiveInt = 24
    """How long the snapshots of each cut are kept."""
    cut_days: PositiveInt = 30
    """How long those of the first cut of a UTC day are kept; the newest cut's stay."""
    orphan_hours: Annotated[float, Field(ge=24)] = 72.0
    """How old a file must be that no snapshot names before it is removed."""
    run_days: PositiveFloat = 14.0
    """How long Dagster's runs are kept; those that made the newest state of a partition stay."""


Contract = Literal["evolve", "freeze", "discard"]


class DeclaredTable(_Section):
    """`[tables.NAME]`: a table of the lake."""

    contract: Contract = "evolve"
    """What becomes of columns that are registered once the state table is there: they are added; they stop its merge
    until somebody decides; or they are left out."""


class DeclaredConnector(_Section):
    """`[connectors.NAME]`: a connector that is registered when the gateway starts.

    In the file its settings have the key that is the name of its type, as in a registration:
    `jira = { domain = "example" }`.
    """

    gateway: Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")]
    """The gateway that it belongs to."""
    type: str
    settings: dict[str, Any] = {}
    """Those of its type. Secrets are references."""
    ingest: dict[str, Any] | None = None
    """How it is polled; unset: it only takes actions."""

    @model_validator(mode="before")
    @classmethod
    def _find_settings(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, Mapping) else None
        if not isinstance(kind, str) or kind not in data or kind in cls.model_fields:
            return data
        return {**{name: value for name, value in data.items() if name != kind}, "settings": data[kind]}

    def body(self, name: str) -> dict[str, Any]:
        """Return the body of a registration under a name."""
        found = {"name": name, "type": self.type, self.type: self.settings}
        return found if self.ingest is None else {**found, "ingest": self.ingest}


class ConnectorsSection(_Section):
    """`[connectors]`: what connectors may refer to, and `[connectors.NAME]`: connectors."""

    references: tuple[str, ...] = ("env:CONNECTOR_{gateway}_*",)
    """Patterns of the references that a registered connector may have in place of a secret; `{gateway}` is its gateway.

    In a pattern of a variable with `{gateway}`, `*` stands for letters and digits: no name is of two gateways.

    `google:GATEWAY` lends the Google identity of the server to the BigQuery connectors of a gateway.

    Who is an admin of a gateway can read through one of its connectors what these allow.
    """
    allowed_hosts: tuple[str, ...] = ("*",)
    """Hosts that connectors may call: names with `*` and networks, which may be private; `*` alone stands for
    every host at a public address."""
    declared: dict[ConnectorName, DeclaredConnector] = {}
    """`[connectors.NAME]`, by name."""

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        tables = {name: each for name, each in data.items() if name not in cls.model_fields and isinstance(each, dict)}
        others = {name: each for name, each in data.items() if name not in tables}
        return {**others, "declared": {**data.get("declared", {}), **tables}} if tables else data


class DeclaredGateway(_Section):
    """`[gateways.NAME]`: a gateway that is there from the start."""

    write_scope: Literal["any", "visible", "rules"] = "visible"
    """Which rows a client may push to, where the gateway has sync rules.

    `visible`: rows that the rules show to the client, and new ones. `rules`: the same, and the rules must show it the
    row after the push too. `any`: every row, so that a client can move any row into its own sight and read it.
    """
    namespace: str | None = None
    """Of its state tables; unset: the one of `lake.namespace`, which gateways share. It stays what it was when the
    gateway's first deltas reached the lake."""
    schemas: tuple[str, ...] = ()
    """Files with a table schema each, as JSON; columns that they have and the gateway lacks are added at its start."""
    rules: str | None = None
    """A file with sync rules as JSON, put in force at the gateway's start where none ever were."""


class LimitsSection(_Section):
    """`[limits]`: how much one request may ask for and one gateway may hold."""

    max_body_bytes: PositiveInt = _MIB
    max_deltas: PositiveInt = 10_000
    max_backpressure_bytes: PositiveInt = 1 << 30
    """Unflushed bytes a gateway; unset: 1 GiB or a tenth of the free disk, whichever is less."""
    requests_per_second: PositiveFloat = 1000.0
    """A client's share, averaged over ten seconds."""
    request_timeout_seconds: PositiveFloat = 30.0
    max_actions: PositiveInt = 100
    """In one request."""
    action_timeout_seconds: PositiveFloat = 20.0
    """How long a request waits for its actions; they go on after that."""
    action_lease_seconds: PositiveFloat = 30.0
    """After which an action whose process died may be tried again."""
    action_retention_days: PositiveFloat = 7.0
    """How long a repeat of an action is known."""
    websocket_connections: PositiveInt = 2000
    """Held at once by one server."""
    websocket_connections_per_gateway: PositiveInt = 1000
    """Of those, one gateway's share."""
    websocket_connections_per_client: PositiveInt = 20
    """Of those, one client's share."""
    websocket_messages_per_second: PositiveFloat = 50.0
    """A client's share over WebSockets, averaged over ten seconds."""
    websocket_slow_reader_seconds: PositiveFloat = 10.0
    """After which a client is disconnected that takes nothing of what it was sent."""
    min_free_disk_bytes: NonNegativeInt = 64 * _MIB
    """With less than this free for staging on SQLite, the gateway is not ready."""


class ShardConfig(_Section):
    """`shard_config`: which tables have a staging store of their own; `LAKESYNC_SHARD_CONFIG` has the same as JSON."""

    shards: dict[str, str] = {}
    """Table → shard."""
    default: str
    """The shard of every other table; its store is the one at `staging.url`."""
    stores: dict[str, str] = {}
    """Shard → URL of its store; without one, a folder of its name in the default shard's."""
