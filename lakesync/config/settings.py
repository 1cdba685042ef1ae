"""`Config`: every setting, from overrides, `LAKESYNC_*` variables, `lakesync.toml` and the user's own file.

A variable is named after a section and a key: `LAKESYNC_SPARK_MEMORY` is `memory` in `[spark]`. A *reference*,
`env:NAME` or `file:PATH`, replaces a secret in a file: the value is read from that environment variable or file.
Commands, the gateway server, Dagster's code location and notebooks call `load` when they start. It explains each error
with the variable or line that causes it. `lakesync up` passes the whole configuration, as such variables, to the
processes that it starts (`Config.environment`). `[gateway]` is the server, and `[gateways.NAME]` one app's or tenant's
stream of changes on it. The *lake* is the Iceberg tables.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pydantic
from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

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
    check_backends,
)
from lakesync.config.files import SECRETS, config_file, expanded, line_of, read_file, user_file
from lakesync.config.row_ownership import check_row_ownership
from lakesync.config.sections import (
    REVEAL,
    ConnectorsSection,
    Contract,
    DagsterSection,
    DeclaredConnector,
    DeclaredGateway,
    DeclaredIssuer,
    DeclaredTable,
    FlushSection,
    GatewaySection,
    LakeSection,
    LimitsSection,
    MaintenanceSection,
    RemoteSection,
    ShardConfig,
    SparkSection,
    StagingSection,
)
from lakesync.config.tier_checks import check_tiers
from lakesync.model.errors import ConfigurationError
from lakesync.model.namespaces import Namespaces, check_namespaces
from lakesync.model.validation import GATEWAY_ID

_PREFIX = "LAKESYNC_"
"""The start of the variables that are settings."""
_REFERENCE = re.compile(r"env:([\w*?{}]+)")
"""A reference to a variable, in a file or in a variable that is JSON; or a pattern of references, as in
`connectors.allowed_references`."""
_CATALOGUE_SETTINGS = ("type", "catalog-impl", "uri", "warehouse")
"""Spark's settings of an Iceberg catalogue (`spark.sql.catalog.NAME.…`) that only `[lake]` may set."""


class _TomlFile(InitSettingsSource):
    """A settings source of pydantic-settings that reads one TOML file, with each reference replaced by its value."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None) -> None:
        super().__init__(settings_cls, read_file(path) if path else {})


class Config(BaseSettings):
    """Every setting, validated, with defaults filled in."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", frozen=True
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
    """Gateways (apps or tenants, each with its own rows and clients) that the server creates when it starts."""

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
            if value.startswith("postgresql://") and value.partition("?")[0].count("@") > 1:
                # libpq takes what follows the first @ for the host, and its errors contain it
                raise ValueError(
                    f"{name} has an @ in its password: write /, ?, #, @ and the like there as %2F, %3F, %23, %40"
                )
        for name, value in (("data_dir", str(self.data_dir)), ("lake.warehouse", self.lake.warehouse)):
            if not {"?", "#"}.isdisjoint(value):  # pyiceberg would write all files of a table to the path before it
                raise ValueError(f"{name} is {value!r}, but a path in the lake ends at ? or #; use another folder")
        checkpoints = self.lake.checkpoints
        if checkpoints.startswith("file:") and not {"?", "#"}.isdisjoint(checkpoints):
            raise ValueError(f"lake.checkpoints is {checkpoints!r}, which ends at its ? or #; write %3F or %23")
        return self

    @model_validator(mode="after")
    def _check_backends(self) -> Config:
        """Check that the sections about backends are consistent with each other."""
        backends = Backends(*(getattr(self, section) for section in Backends._fields))
        check_backends(backends)
        check_tiers(backends)
        check_row_ownership(backends)
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


def load(overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the effective configuration.

    Args:
        overrides: settings that take precedence over `LAKESYNC_*` variables, which take precedence over files.

    Raises:
        ConfigurationError: a setting is unknown or invalid. The message names each such setting, the variable or line
            that set it, and the reason, but never the value of a secret. A variable `LAKESYNC_…` of an unknown section
            is an error only if it resembles a setting, because others may use such names: in Kubernetes, a service
            `lakesync` sets `LAKESYNC_SERVICE_HOST`.
    """
    problems = []
    try:
        config = Config(**(overrides or {}))
    except pydantic.ValidationError as error:
        problems += [_explain(problem, overrides or {}) for problem in error.errors()]
    except SettingsError as error:
        problems.append(_explain_variable(str(error)))
    except pydantic.errors.PydanticUserError as error:  # pragma: no cover, a defect of the models
        raise ConfigurationError(str(error)) from error
    problems += _misspelt_variables()
    if problems:
        raise ConfigurationError("\n".join(problems))
    return config


def _misspelt_variables() -> list[str]:
    """Return an error for each variable that is no setting, but whose name is like a setting's.

    Pydantic reports a misspelt setting of a section, but ignores variables that name no section. Variables to which the
    settings refer (`env:NAME`) are no errors.
    """
    known, sections, errors = list(Config.model_fields), [], []
    for name, field in Config.model_fields.items():
        if get_origin(field.annotation) is dict:
            sections.append(f"{name}_")
        elif settings := _settings_in([name]):
            sections.append(f"{name}_")
            known += [f"{name}_{key}" for key in settings]
    for variable in sorted(os.environ):
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or name in known or name.startswith(tuple(sections)):
            continue
        near = get_close_matches(name, (each for each in known if each.count("_") == name.count("_")), 1, 0.75)
        if near and not _is_referred_to(variable):
            errors.append(f"{variable} is not a setting; did you mean {_PREFIX}{near[0].upper()}?")
    return errors


def _is_referred_to(variable: str) -> bool:
    """Return whether a setting, in a file or a variable, refers to a variable.

    A pattern in `connectors.allowed_references`, which allows connectors to refer to the variable, counts too.
    """
    texts = [path.read_text("utf-8", "replace") for path in (config_file(), user_file()) if path is not None]
    texts += [value for name, value in os.environ.items() if name.startswith(_PREFIX)]
    patterns = (match[1].replace("{gateway}", "*") for text in texts for match in _REFERENCE.finditer(text))
    return any(fnmatch.fnmatchcase(variable, pattern) for pattern in patterns)


def _explain_variable(message: str) -> str:
    """Explain the error of pydantic-settings for a variable of a section, list or table that is not JSON."""
    field = message.partition('"')[2].partition('"')[0]  # the message has the field's name in quotes
    start = f"LAKESYNC_{field.upper()}"
    names = " or ".join(name for name in sorted(os.environ) if name == start or name.startswith(f"{start}_"))
    hint = "; the gateway that commands call is LAKESYNC_REMOTE_GATEWAY" if start == "LAKESYNC_GATEWAY" else ""
    return (
        f"{names} is not JSON. Set each setting of a section by its own variable, as LAKESYNC_GATEWAY_PORT{hint}; "
        'write a list as ["a"].'
    )


def _explain(problem: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """Explain one problem that pydantic found, without a value that may be a secret or contain one."""
    parts = [str(part) for part in problem["loc"]]
    if parts[:2] == ["connectors", "declared"]:
        del parts[1]  # in a file, connectors are keys of the section
    name, message = ".".join(parts), str(problem["msg"]).removeprefix("Value error, ")
    if not name:
        return f"{message}."
    source = _source(parts, overrides)
    if problem["type"] == "tuple_type":
        message = 'it must be a list, as ["a"]'
    if problem["type"] == "extra_forbidden":
        known = _settings_in(parts[:-1])
        near = get_close_matches(parts[-1], known, 1)
        hint = f"did you mean {'.'.join([*parts[:-1], *near])}?" if near else f"known settings: {', '.join(known)}."
        return f"{name} is not a setting{source}; {hint}"
    if problem["type"] == "missing":
        return f"{name} is not set{source}, but it is required."
    if name in SECRETS or not isinstance(problem["input"], str | float | int | None):
        return f"{name}{source}: {message}."
    return f"{name} is {problem['input']!r}{source}: {message}."


def _source(parts: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Return, in parentheses, the variable or the line of a file that set a setting; empty for an override."""
    section, key = parts[0], ".".join(parts[1:2])
    override = overrides.get(section)
    if override is not None and (not isinstance(override, Mapping) or key in override):
        return ""
    for variable in (f"LAKESYNC_{section}_{key}".upper(), f"LAKESYNC_{section}".upper()):
        if variable in os.environ:
            return f" (the variable {variable})"
    for path in (config_file(), user_file()):
        line = line_of(path.read_text("utf-8"), parts) if path is not None else None
        if line is not None:
            return f" ({path}, line {line})"
    return ""


def _settings_in(section: Sequence[str]) -> list[str]:
    """Return the names of a section's settings; those of the top level, sections included, for an empty name."""
    fields = Config.model_fields
    if not section:
        return list(fields)
    model = fields[section[0]].annotation if section[0] in fields else None
    if list(section[:2]) == ["gateway", "issuers"]:
        model = DeclaredIssuer
    elif section[0] == "connectors" and len(section) > 1:
        model = DeclaredConnector
    kinds = [each for each in (model, *get_args(model)) if isinstance(each, type) and issubclass(each, BaseModel)]
    return [field.alias or name for kind in kinds for name, field in kind.model_fields.items()]
