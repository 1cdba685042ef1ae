"""The sections of `lakesync.toml`, except those about backends: each setting with its type, default and meaning.

`Config` (settings.py) contains them, and everything that has settings reads them there. The docstring below a setting
is its description in docs/configuration.md, which `lakesync.config.reference` generates.

A *gateway* is one app's or tenant's stream of changes; one server has many. Its clients *push* their *deltas* (changes
of rows) to the *staging* store. The pipeline, which Dagster runs, *flushes* them to the *lake*: the Iceberg tables
`deltas`, with every delta, and a *state table* with the current rows of each table. A *checkpoint* is a copy of all
rows of a gateway, from which new clients start. *Sync rules* decide by the claims of a client's token which rows the
client sees. A *connector* is an external system that is polled or runs *actions*, the requests that clients send to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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


class LakeSection(Section):
    """`[lake]`: the Iceberg catalogue and the location of its tables."""

    catalog: str = "lake"
    """Name of the catalogue in Spark and pyiceberg."""
    catalog_uri: str = ""
    """`sqlite:////ABSOLUTE/FILE`, `postgresql://…`, or `http(s)://…` (REST); empty: SQLite in the data folder."""
    warehouse: str = ""
    """`file:///ABSOLUTE/FOLDER` or `s3://BUCKET/PREFIX`; empty: a folder in the data folder. Existing tables stay where
    they are; new ones are created here."""
    system_namespace: str = "lakesync"
    """Namespace of the tables `deltas`, `rejected` and `gateways`."""
    namespace: str = "tables"
    """Namespace of the state tables that gateways share."""
    checkpoints: str = ""
    """Folder or `s3://BUCKET/PREFIX` for checkpoint frames; empty: a folder in the data folder. Gateway and Spark find
    S3 by the AWS variables."""


class SparkSection(Section):
    """`[spark]`: the embedded Spark Connect server, or the address of another one."""

    remote: str | None = None
    """`sc://HOST:PORT` of an external Spark Connect server; if set, `lakesync up` starts no Spark."""
    master: Annotated[str, Field(pattern=r"^(spark|k8s)://.+$|^yarn$")] | None = None
    """Spark master of a cluster whose executors do the work instead of local cores. They cannot read local folders."""
    port: Port = 0
    """Port of the embedded server; 0: any free port."""
    ui_port: Port = 0
    """Port of the embedded server's web UI, on loopback; 0: any free port."""
    ui_url: str | None = None
    """URL of Spark's web UI; `lakesync up` sets it for the embedded server."""
    token: SecretStr | None = None
    """Pre-shared token of Spark Connect; `lakesync up` generates one for the embedded server."""
    memory: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "2g"
    """Heap of the embedded server, as `512m` or `2g`."""
    cores: PositiveInt | Literal["*"] = 2
    """Cores that the embedded server uses; `*`: all."""
    settings: dict[str, str] = {}
    """Further `spark.…` settings of the embedded server, passed on unchanged."""

    @property
    def address(self) -> str | None:
        """The address of Spark Connect as `sc://HOST:PORT`; None if no Spark is configured."""
        return self.remote or (f"sc://localhost:{self.port}" if self.port else None)


class DagsterSection(Section):
    """`[dagster]`: the pipeline's daemon and web UI."""

    home: Path = Path()
    """`DAGSTER_HOME`; empty: a folder in the data folder. A `dagster.yaml` in it that `lakesync` did not write is used
    unchanged."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address that the web UI listens on. It asks for no password."""
    port: Port = 3000
    """Port of the web UI; 0: any free port."""
    allowed_hosts: Texts = ()
    """Further Host headers that the web UI accepts, `NAME` or `NAME:PORT`, such as that of a proxy."""
    storage_url: SecretStr | None = None
    """`postgresql://…` for Dagster's runs, events and schedules; unset: SQLite in `home`."""
    run_launcher: dict[str, Any] | None = None
    """`module`, `class` and `config` of a run launcher, as in `dagster.yaml`; unset: the run host of `lakesync up`."""
    url: str | None = None
    """URL of the web UI; `lakesync up` sets it."""
    partitions_start: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """First day (UTC) of the daily partitions, `YYYY-MM-DD`; unset: the day of the first push."""
    max_run_seconds: PositiveInt = 3600
    """Seconds after which Dagster terminates a run."""
    late_after_seconds: PositiveInt = 900
    """Age in seconds from which an acknowledged delta that is not in the lake, or not in its table, counts as late."""
    alert_webhook: SecretStr | None = None
    """URL that receives a JSON POST for each failed run, and when an asset check starts to fail or passes again."""
    alert_secret: SecretStr | None = None
    """Key that signs those posts with HMAC-SHA256."""

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


class FlushSection(Section):
    """`[flush]`: when staged deltas are flushed to the lake, and how a gateway without a pipeline flushes by itself."""

    to_uri: str = ""
    """Adapter URI that the gateway flushes to by itself, such as `file:///ABSOLUTE/FOLDER`; empty: the pipeline
    flushes."""
    format: Literal["parquet", "json"] = "parquet"
    """Format of the objects that a flush to `to_uri` writes."""
    queue: str = ""
    """Object store URI of the queue for updates of destination tables, which `lakesync materialise` consumes; empty:
    the staging store keeps the queue and the gateway consumes it."""
    max_bytes: PositiveInt = 4 * _MIB
    """Unflushed bytes of a gateway that trigger a flush."""
    max_table_bytes: PositiveInt | None = None
    """Unflushed bytes of one table that trigger a flush; unset: no limit per table."""
    wide_row_columns: PositiveInt | None = None
    """Average columns per unflushed delta above which `max_bytes` is reduced; unset: never."""
    wide_row_reduction: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Fraction by which `max_bytes` is reduced then."""
    max_age_seconds: PositiveFloat = 30.0
    """Age in seconds of the oldest unflushed delta that triggers a flush."""
    batch_deltas: PositiveInt | None = None
    """Deltas in one batch at most; unset: 1,000,000 in the pipeline, where Spark's tasks share them, and 250,000 in a
    gateway, which keeps them in memory."""


class MaintenanceSection(Section):
    """`[maintenance]`: the upkeep of the lake's files, of staging's log and of Dagster's run records."""

    schedule: str = "17 * * * *"
    """Cron schedule (UTC). Each part does work only if its threshold is passed."""
    min_input_files: Annotated[int, Field(ge=2)] = 8
    """Small files in a partition, or in a gateway's day of `deltas`, that trigger their compaction."""
    target_file_bytes: PositiveInt = 128 * _MIB
    """Size in bytes that compaction aims at."""
    delete_ratio_threshold: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Fraction of deleted rows from which a data file is rewritten."""
    max_manifests: PositiveInt = 20
    """Number of a table's manifests above which they are rewritten."""
    snapshot_retention_hours: Annotated[float, Field(ge=2)] = 72.0
    """Hours for which Iceberg snapshots are kept. Must exceed the longest run, which validates against the snapshot
    that it read."""
    checkpoint_retention_hours: PositiveInt = 24
    """Hours for which the snapshots of every checkpoint are kept."""
    daily_checkpoint_retention_days: PositiveInt = 30
    """Days for which the snapshots of each UTC day's first checkpoint are kept. Those of the newest one always stay."""
    orphan_retention_hours: Annotated[float, Field(ge=24)] = 72.0
    """Age in hours from which a file that no snapshot references is deleted."""
    run_retention_days: PositiveFloat = 14.0
    """Days for which Dagster's runs are kept. Runs that made the newest state of a partition stay."""


Contract = Literal["evolve", "freeze", "discard"]
"""What happens to new columns of a table; `DeclaredTable` explains each."""


class DeclaredTable(Section):
    """`[tables.NAME]`: a table of the lake."""

    contract: Contract = "evolve"
    """What happens to columns that are registered after the state table was created. `evolve`: they are added.
    `freeze`: the table's merge stops until an operator decides. `discard`: they are left out."""


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
