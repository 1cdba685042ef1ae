"""`Config`: every setting, from overrides, `LAKESYNC_*` variables, `lakesync.toml` and the user's own file.

A variable is named after a section and a key: `LAKESYNC_SPARK_MEMORY` is `memory` in `[spark]`. A *reference*,
`env:NAME` or `file:PATH`, replaces a secret in a file: the value is read from that environment variable or file. `load`
(loading.py) creates a `Config`. `lakesync up` passes the whole configuration, as such variables, to the processes that
it starts (`Config.environment`). `[gateway]` is the server, and `[gateways.NAME]` one app's stream of changes on it.
The *lake* is the Iceberg tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from lakesync.config.backend_checks import check_backends
from lakesync.config.backends import (
    BackendName,
    Backends,
    DeclaredDestination,
    DeclaredFanOut,
    DeclaredFlow,
    DeclaredMigration,
    DeclaredRoutes,
    DeclaredSource,
    DeclaredTiers,
    TableName,
)
from lakesync.config.files import config_file, expanded, read_file, user_file
from lakesync.config.pipeline_sections import (
    Contract,
    DagsterSection,
    DeclaredTable,
    FlushSection,
    LakeSection,
    MaintenanceSection,
    SparkSection,
)
from lakesync.config.sections import (
    REVEAL,
    ConnectorsSection,
    DeclaredGateway,
    GatewaySection,
    LimitsSection,
    RemoteSection,
    ShardConfig,
    StagingSection,
)
from lakesync.model.namespaces import Namespaces, check_namespaces
from lakesync.model.secrets import is_readable_postgres_url
from lakesync.model.validation import GATEWAY_ID

PREFIX = "LAKESYNC_"
"""The start of the variables that are settings."""
_CATALOGUE_SETTINGS = ("type", "catalog-impl", "uri", "warehouse")
"""Spark's settings of an Iceberg catalogue (`spark.sql.catalog.NAME.…`) that only `[lake]` may set."""


class _TomlFile(InitSettingsSource):
    """A settings source of pydantic-settings that reads one TOML file, with each reference replaced by its value."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None) -> None:
        super().__init__(settings_cls, read_file(path) if path else {})


class Config(BaseSettings):
    """Every setting, validated, with defaults filled in."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", frozen=True
    )

    data_dir: Path = Path("lakesync-data")
    """Folder for everything that is kept: staging, lake, pipeline, logs. Relative to the file that sets it."""
    jwt_secret: SecretStr | None = None
    """Secret that signs clients' tokens (HS256). Without it, and without `[[gateway.issuers]]`, the gateway listens on
    loopback only."""
    jwt_secret_previous: SecretStr | None = None
    """Secret that is still accepted during a rotation."""
    service_token: SecretStr | None = None
    """Token of the pipeline for the gateway's internal routes. Without it they are closed."""
    metrics_token: SecretStr | None = None
    """Token of Prometheus for `/metrics`. Without it that route is open."""
    secret_key: SecretStr | None = None
    """Key that encrypts the secrets of connectors, at least 32 characters. Without it, a connector may only have
    references to its secrets."""
    secret_key_previous: SecretStr | None = None
    """Key that still decrypts them, until a gateway has started with the new key."""
    token: SecretStr | None = None
    """Token of the `lakesync` commands for the gateway that they call."""
    clock_offset_file: Path | None = None
    """File with a whole number of milliseconds that the gateway adds to its clock; for demos and tests."""
    # Each field from here on is a section of the file, such as `[lake]`, or several by name, such as `[flows.NAME]`. A
    # *backend* is an adapter (access to one database or object store) or a combination of backends.
    gateway: GatewaySection = GatewaySection()
    remote: RemoteSection = RemoteSection()
    staging: StagingSection = StagingSection()
    lake: LakeSection = LakeSection()
    spark: SparkSection = SparkSection()
    dagster: DagsterSection = DagsterSection()
    flush: FlushSection = FlushSection()
    maintenance: MaintenanceSection = MaintenanceSection()
    limits: LimitsSection = LimitsSection()
    connectors: ConnectorsSection = ConnectorsSection()
    sources: dict[str, DeclaredSource] = {}
    """Backends from which clients may pull."""
    adapters: dict[BackendName, str] = {}
    """Name → adapter URI of a database or object store; in a file, a URI with credentials must be a reference."""
    routes: dict[BackendName, DeclaredRoutes] = {}
    """Backends that keep each table in one of several backends."""
    fan_out: dict[BackendName, DeclaredFanOut] = {}
    """Backends with a primary, and secondaries that follow it."""
    tiers: dict[BackendName, DeclaredTiers] = {}
    """Backends with a hot part for recent changes and a cold one for old changes."""
    destinations: dict[BackendName, DeclaredDestination] = {}
    """Backends to which the pipeline copies the changes in the lake."""
    flows: dict[BackendName, DeclaredFlow] = {}
    """Incremental copies from one backend to another."""
    migrations: dict[BackendName, DeclaredMigration] = {}
    """Verified copies of whole tables from one backend to another."""
    shard_config: ShardConfig | None = None
    """Tables that have a staging store of their own (a shard); None without sharding."""
    tables: dict[TableName, DeclaredTable] = {}
    """Settings of tables in the lake."""
    gateways: dict[Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")], DeclaredGateway] = {}
    """Gateways (streams of changes, each with its own rows and clients) that the server creates when it starts."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings by precedence: overrides, variables, the project's file, the user's file."""
        files = (_TomlFile(settings_cls, path) for path in (config_file(), user_file()))
        return (init_settings, env_settings, *files)

    @model_validator(mode="before")
    @classmethod
    def _derive_defaults(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Fill in the settings whose default depends on the data folder."""
        data_dir = data.get("data_dir") or "lakesync-data"
        if not isinstance(data_dir, str | Path):
            return data
        folder = expanded(str(data_dir), "data_dir").absolute()

        def fill(section: str, key: str, default: object) -> None:
            settings = data.get(section) or {}
            if isinstance(settings, dict) and settings.get(key) in (None, ""):
                data[section] = {**settings, key: default}

        data = {**data, "data_dir": folder}
        fill("staging", "url", f"sqlite://{folder / 'staging'}")
        fill("lake", "catalog_uri", f"sqlite:///{folder / 'catalog.db'}")
        fill("lake", "warehouse", f"file://{folder / 'warehouse'}")
        fill("lake", "checkpoints", str(folder / "checkpoints"))
        fill("dagster", "home", folder / "dagster")
        # a tenth of the free disk, but at least 1 MiB and at most 1 GiB
        fill("limits", "max_backpressure_bytes", max(1 << 20, min(1 << 30, _free_disk(folder) // 10)))
        return data

    @model_validator(mode="after")
    def _check_urls(self) -> Config:
        """Check that the stores' URLs have a supported scheme."""
        for name, value, known in (
            ("staging.url", self.staging.url, ("sqlite:///", "postgresql://", "memory://")),
            ("lake.catalog_uri", self.lake.catalog_uri, ("sqlite:////", "postgresql://", "http://", "https://")),
            ("lake.warehouse", self.lake.warehouse, ("file:///", "s3://")),
        ):
            if not value.startswith(known):
                scheme, separator, _ = value.partition("://")
                start = repr(scheme) if separator else "no scheme"  # without one, the value may begin with a password
                raise ValueError(f"{name} starts with {start}; it must start with one of {', '.join(known)}")
        stores = self.shard_config.stores if self.shard_config is not None else {}
        for name, value in (
            ("staging.url", self.staging.url),
            *((f"shard_config.stores.{shard}", url) for shard, url in stores.items()),
            ("lake.catalog_uri", self.lake.catalog_uri),
            *((f"adapters.{adapter}", uri) for adapter, uri in self.adapters.items()),
        ):
            if value.startswith("postgresql://") and not is_readable_postgres_url(value):
                raise ValueError(
                    f"{name} has an @ or the like in its password, or a port that is no number: write /, ?, #, @ and "
                    "the like in the password as %2F, %3F, %23, %40"
                )
        for name, value in (("data_dir", str(self.data_dir)), ("lake.warehouse", self.lake.warehouse)):
            if not {"?", "#"}.isdisjoint(value):  # pyiceberg would write all files of a table to the path before it
                raise ValueError(f"{name} is {value!r}, but a path in the lake ends at ? or #; use another folder")
        checkpoints = self.lake.checkpoints
        if checkpoints.startswith("file:") and not {"?", "#"}.isdisjoint(checkpoints):
            raise ValueError(f"lake.checkpoints is {checkpoints!r}, which ends at its ? or #; write %3F or %23")
        return self

    @property
    def backends(self) -> Backends:
        """The sections about backends."""
        return Backends(*(getattr(self, section) for section in Backends._fields))

    @model_validator(mode="after")
    def _check_backends(self) -> Config:
        """Check that the sections about backends are consistent with each other."""
        check_backends(self.backends)
        return self

    @model_validator(mode="after")
    def _check_namespaces(self) -> Config:
        """Check the namespaces that gateways declare for their own tables."""
        lake = self.lake
        check_namespaces(self.namespaces.own, shared=lake.namespace, system=lake.system_namespace, catalog=lake.catalog)
        return self

    @model_validator(mode="after")
    def _check_cluster(self) -> Config:
        """Check that a cluster's workers need no folder of this machine, because they cannot read one."""
        if self.spark.master is None:
            return self
        for name, value, known in (
            ("staging.url", self.staging.url, ("postgresql://",)),
            ("lake.catalog_uri", self.lake.catalog_uri, ("postgresql://", "http://", "https://")),
            ("lake.warehouse", self.lake.warehouse, ("s3://",)),
            ("lake.checkpoints", self.lake.checkpoints, ("s3://",)),
        ):
            if not value.startswith(known):
                raise ValueError(
                    f"{name} is on this machine's disk, which the workers of spark.master {self.spark.master!r} do not "
                    f"see; it must start with {' or '.join(known)}"
                )
        return self

    @model_validator(mode="after")
    def _check_one_catalogue(self) -> Config:
        """Check that Spark uses the catalogue of `[lake]`, which commands and checks read."""
        catalogue = f"spark.sql.catalog.{self.lake.catalog}"
        for key in (catalogue, *(f"{catalogue}.{name}" for name in _CATALOGUE_SETTINGS)):
            if key in self.spark.settings:
                raise ValueError(
                    f"spark.settings has {key!r}, which would lead Spark to another catalogue than [lake] names; set "
                    "lake.catalog_uri and lake.warehouse instead"
                )
        return self

    @property
    def namespaces(self) -> Namespaces:
        """The Iceberg namespaces of the gateways' state tables: the lake's tables with the current rows."""
        own = {name: gateway.namespace for name, gateway in self.gateways.items() if gateway.namespace is not None}
        return Namespaces(self.lake.namespace, own)

    @property
    def sole_gateway(self) -> str | None:
        """The id of the only gateway in `[gateways]`; None if there are several, or none."""
        return next(iter(self.gateways)) if len(self.gateways) == 1 else None

    @property
    def gateway_owns_staging(self) -> bool:
        """Whether other processes call the gateway to use staging, because only one process may open SQLite's store."""
        sharded = self.shard_config.stores.values() if self.shard_config is not None else ()
        return any(url.startswith("sqlite:") for url in (self.staging.url, *sharded))

    @property
    def contracts(self) -> dict[str, Contract]:
        """Table → its contract: what happens to columns that are registered later.

        Tables with the default contract, `evolve`, are left out.
        """
        return {name: table.contract for name, table in self.tables.items() if table.contract != "evolve"}

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and value of every setting; tables by name, such as `[flows.NAME]`, are one setting.

        A name is `SECTION.SETTING`, or `SETTING` outside of sections.
        """
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, BaseModel):
                yield from ((f"{name}.{key}", getattr(value, key)) for key in type(value).model_fields)
            else:
                yield name, value

    def environment(self) -> dict[str, str]:
        """Return the configuration as variables for a child process, secrets in plain text.

        `load` in the child returns an equal configuration.
        """
        variables = {"LAKESYNC_CONFIG": ""}  # the child reads no file
        for name, value in self.settings():
            if not name.startswith("shard_config."):
                _put(variables, f"LAKESYNC_{name}".replace(".", "_").upper(), value)
        if self.shard_config is not None:
            variables["LAKESYNC_SHARD_CONFIG"] = self.shard_config.model_dump_json()
        return variables

    def replace(self, **sections: Any) -> Config:
        """Return a copy with other values, without validation: `config.replace(gateway={"port": 0})`.

        Args:
            sections: setting → value; for a section a mapping with the settings to replace.
        """
        changes = {
            name: getattr(self, name).model_copy(update=value) if isinstance(value, Mapping) else value
            for name, value in sections.items()
        }
        return self.model_copy(update=changes)


def _put(variables: dict[str, str], name: str, value: object) -> None:
    """Add a setting to `variables` in the form that pydantic-settings reads; nothing for None."""
    match value:
        case None:
            return
        case SecretStr():
            variables[name] = value.get_secret_value()
        case tuple() | dict():
            variables[name] = pydantic.TypeAdapter(type(value)).dump_json(value, context=REVEAL).decode()
        case _:
            variables[name] = str(value)


def _free_disk(folder: Path) -> int:
    """Return the free bytes on the disk that `folder` is on, or will be on."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free
