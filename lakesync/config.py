"""The configuration: `lakesync.toml`, overridden by `LAKESYNC_*` variables, read here and nowhere else.

A variable is named after its section and key, `LAKESYNC_SPARK_MEMORY` for `memory` in `[spark]`. What `lakesync up`
starts gets the whole configuration as such variables (`Config.environment`) and reads it back with `load`.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from lakesync.exceptions import ConfigurationError
from lakesync.references import KINDS, follow

Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the system choose a free one."""

_MIB = 1 << 20
_REFERENCES = (
    "jwt_secret",
    "jwt_secret_previous",
    "service_token",
    "secret_key",
    "secret_key_previous",
    "spark.token",
    "dagster.alert_webhook",
    "staging.url",
    "lake.catalog_uri",
    "flush.to_uri",
)
"""Settings that may hold a secret; in the file, those that are no URL are references only."""


class _Section(BaseModel):
    model_config = {"frozen": True, "extra": "forbid"}


class GatewaySection(_Section):
    """`[gateway]`: the HTTP server."""

    host: str = "127.0.0.1"
    port: Port = 8787
    url: str | None = None
    """Where the pipeline reaches the gateway; `lakesync up` sets it."""
    auto_create: bool = True
    """Whether the first valid token that names a gateway makes it."""
    cors_origins: tuple[str, ...] = ("*",)


class StagingSection(_Section):
    """`[staging]`: the store that the gateway commits to."""

    url: str = ""
    """`sqlite:///ABSOLUTE/FOLDER` or `postgresql://…`; empty: SQLite in the data folder."""


class LakeSection(_Section):
    """`[lake]`: the Iceberg catalogue and where its tables stand."""

    catalog: str = "lake"
    catalog_uri: str = ""
    """`sqlite:////ABSOLUTE/FILE` or `postgresql://…`; empty: SQLite in the data folder."""
    warehouse: str = ""
    """`file:///ABSOLUTE/FOLDER`; empty: a folder in the data folder."""
    system_namespace: str = "lakesync"
    namespace: str = "tables"
    """Of the state tables."""
    checkpoints: str = ""
    """A folder for the frames of checkpoints; empty: one in the data folder."""


class SparkSection(_Section):
    """`[spark]`: the embedded Connect server, or where another one listens."""

    remote: str | None = None
    """`sc://HOST:PORT`; where it is set, `lakesync up` starts no Spark."""
    port: Port = 0
    token: SecretStr | None = None
    memory: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "2g"
    cores: PositiveInt | Literal["*"] = 2
    shuffle_partitions: PositiveInt = 4
    settings: dict[str, str] = {}
    """Further `spark.…` settings of the embedded server, as they are."""


class DagsterSection(_Section):
    """`[dagster]`: the pipeline's daemon and pages."""

    home: Path = Path()
    """Empty: a folder in the data folder."""
    port: Port = 3000
    url: str | None = None
    """Where the webserver answers; `lakesync up` sets it."""
    partitions_start: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] = "2024-01-01"
    """The first day (UTC) of the time axis."""
    max_run_seconds: PositiveInt = 3600
    alert_webhook: SecretStr | None = None
    """Gets a JSON post for each failed run."""


class FlushSection(_Section):
    """`[flush]`: when what is staged goes to the lake, or where a gateway without a pipeline carries it itself."""

    to_uri: str = ""
    """An adapter's URI, such as `file:///ABSOLUTE/FOLDER`; empty: the pipeline flushes."""
    format: Literal["parquet", "json"] = "parquet"
    """Of the objects that `to_uri` gets."""
    bytes: PositiveInt = 4 * _MIB
    table_bytes: PositiveInt | None = None
    """Flush to `to_uri` when so much waits of one table."""
    age_seconds: PositiveFloat = 30.0
    batch_deltas: PositiveInt = 250_000
    """The most deltas in one batch."""


class ConnectorsSection(_Section):
    """`[connectors]`: what connectors may refer to."""

    references: tuple[str, ...] = ("env:CONNECTOR_*",)
    """Patterns of the references that a registered connector may have in place of a secret; `{gateway}` is its gateway.

    Who is an admin of a gateway can read through one of its connectors what these allow.
    """


class DeclaredGateway(_Section):
    """`[gateways.NAME]`: a gateway that is there from the start."""

    write_scope: Literal["any", "rules"] = "any"
    """What a push may change: every row, or only rows that the sender's rules show it."""


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
    websocket_connections: PositiveInt = 1000
    """Held at once by one server."""
    websocket_messages_per_second: PositiveFloat = 50.0
    """A client's share over WebSockets, averaged over ten seconds."""
    websocket_slow_reader_seconds: PositiveFloat = 10.0
    """After which a client is disconnected that takes nothing of what it was sent."""
    min_free_disk_bytes: NonNegativeInt = 64 * _MIB
    """With less than this free for staging on SQLite, the gateway is not ready."""


class _File(InitSettingsSource):
    """The TOML file, its references resolved and its relative data folder taken from where it lies."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None) -> None:
        super().__init__(settings_cls, _read(path) if path else {})


class Config(BaseSettings):
    """Every setting, checked and complete."""

    model_config = SettingsConfigDict(
        env_prefix="LAKESYNC_", env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", frozen=True
    )

    data_dir: Path = Path("lakesync-data")
    jwt_secret: SecretStr | None = None
    jwt_secret_previous: SecretStr | None = None
    """Still accepted, while a new secret is rolled out."""
    service_token: SecretStr | None = None
    """What the pipeline shows the gateway; without one the internal routes are closed."""
    secret_key: SecretStr | None = None
    """Seals the secrets of connectors; without one they can only be references."""
    secret_key_previous: SecretStr | None = None
    """Still opens what it sealed, until a gateway has started with the new one."""
    clock_offset_file: Path | None = None
    """A file with a whole number of milliseconds that the gateway adds to its clock."""
    gateway: GatewaySection = GatewaySection()
    staging: StagingSection = StagingSection()
    lake: LakeSection = LakeSection()
    spark: SparkSection = SparkSection()
    dagster: DagsterSection = DagsterSection()
    flush: FlushSection = FlushSection()
    limits: LimitsSection = LimitsSection()
    connectors: ConnectorsSection = ConnectorsSection()
    sources: dict[str, str] = {}
    """Names by which clients may pull from adapters, and the adapters' URIs."""
    gateways: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")], DeclaredGateway] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given beats variables, variables beat the file."""
        return init_settings, env_settings, _File(settings_cls, config_file())

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Fill in what follows from the data folder."""
        folder = Path(data.get("data_dir") or "lakesync-data").expanduser().absolute()

        def fill(section: str, key: str, value: object) -> None:
            found = data.get(section) or {}
            if isinstance(found, dict) and not found.get(key):
                data[section] = {**found, key: value}

        data = {**data, "data_dir": folder}
        fill("staging", "url", f"sqlite://{folder / 'staging'}")
        fill("lake", "catalog_uri", f"sqlite:///{folder / 'catalog.db'}")
        fill("lake", "warehouse", f"file://{folder / 'warehouse'}")
        fill("lake", "checkpoints", str(folder / "checkpoints"))
        fill("dagster", "home", folder / "dagster")
        fill("limits", "max_backpressure_bytes", min(1 << 30, _free_disk(folder) // 10))
        return data

    @model_validator(mode="after")
    def _check_urls(self) -> Config:
        for name, value, known in (
            ("staging.url", self.staging.url, ("sqlite:///", "postgresql://", "memory://")),
            ("lake.catalog_uri", self.lake.catalog_uri, ("sqlite:////", "postgresql://")),
            ("lake.warehouse", self.lake.warehouse, ("file:///", "s3://")),
        ):
            if not value.startswith(known):
                scheme = value.partition("://")[0]
                raise ValueError(f"{name} starts with {scheme!r}; it must start with one of {', '.join(known)}")
        return self

    def environment(self) -> dict[str, str]:
        """The configuration as variables for a child process; `load` there gives an equal one.

        Holds the secrets themselves.
        """
        variables = {"LAKESYNC_CONFIG": ""}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, BaseModel):
                for key in type(value).model_fields:
                    _put(variables, f"LAKESYNC_{name}_{key}".upper(), getattr(value, key))
            else:
                _put(variables, f"LAKESYNC_{name}".upper(), value)
        return variables

    def replace(self, **sections: Any) -> Config:
        """A copy with other values: `config.replace(data_dir=…, gateway={"port": 0})`, unchecked."""
        changes = {
            name: getattr(self, name).model_copy(update=value) if isinstance(value, Mapping) else value
            for name, value in sections.items()
        }
        return self.model_copy(update=changes)


def load(overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration in force: `overrides` beat `LAKESYNC_*` variables, which beat the file.

    Raises:
        ConfigurationError: a setting is unknown or cannot be used; the message names it, never a secret's value.
    """
    try:
        return Config(**(overrides or {}))
    except pydantic.ValidationError as error:
        raise ConfigurationError("\n".join(_explain(problem) for problem in error.errors())) from None
    except pydantic.errors.PydanticUserError as error:  # pragma: no cover, a mistake in this file
        raise ConfigurationError(str(error)) from error


def config_file() -> Path | None:
    """The file that `LAKESYNC_CONFIG` names (empty: none), else `lakesync.toml` in the current folder if it is there.

    Raises:
        ConfigurationError: the named file does not exist.
    """
    named = os.environ.get("LAKESYNC_CONFIG")
    if named is None:
        found = Path("lakesync.toml")
        return found.absolute() if found.is_file() else None
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise ConfigurationError(f"LAKESYNC_CONFIG names {path}, and there is no such file.")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for name in _REFERENCES:
        section, _, key = name.rpartition(".")
        holder = data.get(section, {}) if section else data
        if key in holder:
            holder[key] = _resolve(name, holder[key], path)
    sources = data.get("sources", {})
    for name, uri in sources.items():
        sources[name] = _resolve(f"sources.{name}.uri", uri, path)
    if "data_dir" in data:
        data["data_dir"] = str(path.parent / Path(data["data_dir"]).expanduser())
    return data


def _resolve(name: str, value: object, path: Path) -> object:
    if name.endswith("uri") and str(value).startswith("file:///"):
        return value  # a place, not a reference
    if str(value).startswith(KINDS):
        return follow(f"{name} in {path}", str(value), path.parent)
    if name.endswith(("uri", "url")) and "@" not in str(value):
        return value
    raise ConfigurationError(f'{name} in {path} is a secret: write a reference, "env:NAME" or "file:PATH".')


def _put(variables: dict[str, str], name: str, value: object) -> None:
    match value:
        case None:
            return
        case SecretStr():
            variables[name] = value.get_secret_value()
        case tuple() | dict():
            variables[name] = pydantic.TypeAdapter(type(value)).dump_json(value).decode()
        case _:
            variables[name] = str(value)


def _free_disk(folder: Path) -> int:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def _explain(problem: Mapping[str, Any]) -> str:
    """One problem in words, without the value where it may be a secret."""
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{name} is not a setting; lakesync.toml lists them all."
    if not name:
        return str(problem["msg"]).removeprefix("Value error, ") + "."
    if name in _REFERENCES:
        return f"{name}: {problem['msg']}."
    return f"{name} is {problem['input']!r}: {problem['msg']}."
