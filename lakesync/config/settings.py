"""The configuration: `lakesync.toml`, overridden by `LAKESYNC_*` variables, read here and nowhere else.

Below the project's file is the user's, `~/.config/lakesync/lakesync.toml`, with the same settings.

A variable is named after its section and key, `LAKESYNC_SPARK_MEMORY` for `memory` in `[spark]`. What `lakesync up`
starts gets the whole configuration as such variables (`Config.environment`) and reads it back with `load`.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

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
    DeclaredCopies,
    DeclaredDestination,
    DeclaredFlow,
    DeclaredMigration,
    DeclaredRoutes,
    DeclaredTiers,
    PlaceName,
    check_places,
)
from lakesync.config.row_ownership import check_rows
from lakesync.config.sections import (
    REVEAL,
    ConnectorsSection,
    Contract,
    DagsterSection,
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
from lakesync.config.toml_lines import line_of
from lakesync.model.errors import ConfigurationError
from lakesync.model.namespaces import Namespaces, check_namespaces
from lakesync.model.secret_references import KINDS, follow
from lakesync.model.validation import GATEWAY_ID

_REFERENCES = (
    "jwt_secret",
    "jwt_secret_previous",
    "service_token",
    "metrics_token",
    "secret_key",
    "secret_key_previous",
    "token",
    "spark.token",
    "dagster.alert_webhook",
    "dagster.alert_secret",
    "dagster.storage_url",
    "staging.url",
    "lake.catalog_uri",
    "flush.to_uri",
)
"""Settings that may hold a secret; in the file, those that are no URL are references only."""


class _File(InitSettingsSource):
    """A TOML file, its references resolved and its relative paths taken from where it lies."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None) -> None:
        super().__init__(settings_cls, read_file(path) if path else {})


_OF_LAKE = ("type", "catalog-impl", "uri", "warehouse")
"""What [lake] says of the catalogue."""


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
    metrics_token: SecretStr | None = None
    """What Prometheus shows at `/metrics`; without one that route is open."""
    secret_key: SecretStr | None = None
    """Seals the secrets of connectors; without one they can only be references."""
    secret_key_previous: SecretStr | None = None
    """Still opens what it sealed, until a gateway has started with the new one."""
    token: SecretStr | None = None
    """What the commands show the gateway that they talk to."""
    clock_offset_file: Path | None = None
    """A file with a whole number of milliseconds that the gateway adds to its clock."""
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
    sources: dict[str, str] = {}
    """Names by which clients may pull from adapters, and the adapters' URIs, or the names of places."""
    adapters: dict[PlaceName, str] = {}
    """Backends and their URIs."""
    routes: dict[PlaceName, DeclaredRoutes] = {}
    copies: dict[PlaceName, DeclaredCopies] = {}
    tiers: dict[PlaceName, DeclaredTiers] = {}
    destinations: dict[PlaceName, DeclaredDestination] = {}
    flows: dict[PlaceName, DeclaredFlow] = {}
    migrations: dict[PlaceName, DeclaredMigration] = {}
    shard_config: ShardConfig | None = None
    """None: every table is in the one store at `staging.url`."""
    tables: dict[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")], DeclaredTable] = {}
    gateways: dict[Annotated[str, Field(pattern=f"^{GATEWAY_ID}$")], DeclaredGateway] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given beats variables, variables beat the project's file, and that the user's."""
        files = (_File(settings_cls, path) for path in (config_file(), user_file()))
        return (init_settings, env_settings, *files)

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Fill in what follows from the data folder."""
        named = data.get("data_dir") or "lakesync-data"
        if not isinstance(named, str | Path):
            return data
        folder = Path(named).expanduser().absolute()

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
        fill("limits", "max_backpressure_bytes", max(1 << 20, min(1 << 30, _free_disk(folder) // 10)))
        return data

    @model_validator(mode="after")
    def _check_urls(self) -> Config:
        for name, value, known in (
            ("staging.url", self.staging.url, ("sqlite:///", "postgresql://", "memory://")),
            ("lake.catalog_uri", self.lake.catalog_uri, ("sqlite:////", "postgresql://", "http://", "https://")),
            ("lake.warehouse", self.lake.warehouse, ("file:///", "s3://")),
        ):
            if not value.startswith(known):
                scheme = value.partition("://")[0]
                raise ValueError(f"{name} starts with {scheme!r}; it must start with one of {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _check_places(self) -> Config:
        check_places(self)
        check_rows(self)
        return self

    @model_validator(mode="after")
    def _check_namespaces(self) -> Config:
        lake = self.lake
        check_namespaces(self.namespaces.own, shared=lake.namespace, system=lake.system_namespace, catalog=lake.catalog)
        return self

    @model_validator(mode="after")
    def _check_nothing_is_shared(self) -> Config:
        """A cluster's workers see no folder of this machine, whatever a test on one machine would let pass."""
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
        """Only `[lake]` names the catalogue: commands and checks read there what Spark writes."""
        catalogue = f"spark.sql.catalog.{self.lake.catalog}"
        for key in (catalogue, *(f"{catalogue}.{name}" for name in _OF_LAKE)):
            if key in self.spark.settings:
                raise ValueError(
                    f"spark.settings has {key!r}, which would lead Spark to another catalogue than [lake] names; set "
                    "lake.catalog_uri and lake.warehouse instead"
                )
        return self

    @property
    def namespaces(self) -> Namespaces:
        """Where gateways have their state tables."""
        own = {name: found.namespace for name, found in self.gateways.items() if found.namespace is not None}
        return Namespaces(self.lake.namespace, own)

    @property
    def sole_gateway(self) -> str | None:
        """The only gateway of `[gateways]`; None where there are several, or none."""
        return next(iter(self.gateways)) if len(self.gateways) == 1 else None

    @property
    def gateway_owns_staging(self) -> bool:
        """Whether other processes reach staging through its gateway: a store on SQLite has one owner."""
        sharded = self.shard_config.stores.values() if self.shard_config is not None else ()
        return any(url.startswith("sqlite:") for url in (self.staging.url, *sharded))

    @property
    def contracts(self) -> dict[str, Contract]:
        """Table → its contract, where that is not `evolve`."""
        return {name: table.contract for name, table in self.tables.items() if table.contract != "evolve"}

    def environment(self) -> dict[str, str]:
        """The configuration as variables for a child process; `load` there gives an equal one.

        Holds the secrets themselves.
        """
        variables = {"LAKESYNC_CONFIG": ""}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, ShardConfig):
                variables["LAKESYNC_SHARD_CONFIG"] = value.model_dump_json()
            elif isinstance(value, BaseModel):
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
        raise ConfigurationError("\n".join(_explain(problem, overrides or {}) for problem in error.errors())) from None
    except SettingsError as error:
        raise ConfigurationError(_unreadable(str(error))) from None
    except pydantic.errors.PydanticUserError as error:  # pragma: no cover, a mistake in this file
        raise ConfigurationError(str(error)) from error


def _unreadable(why: str) -> str:
    """What is wrong with a variable that stands for a section, a list or a table, and is no JSON."""
    start = f"LAKESYNC_{why.partition(chr(34))[2].partition(chr(34))[0].upper()}"
    names = " or ".join(name for name in sorted(os.environ) if name == start or name.startswith(f"{start}_"))
    which = ", and which gateway to talk to is LAKESYNC_REMOTE_GATEWAY" if start == "LAKESYNC_GATEWAY" else ""
    return f'{names} is no JSON: a section has a variable a setting, as LAKESYNC_GATEWAY_PORT{which}; a list is ["a"].'


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


def user_file() -> Path | None:
    """The user's own file, if it is there: in `XDG_CONFIG_HOME`, else `~/.config`.

    None where `LAKESYNC_CONFIG` is empty: then no file counts.
    """
    if os.environ.get("LAKESYNC_CONFIG") == "":
        return None
    home = os.environ.get("XDG_CONFIG_HOME")
    path = (Path(home) if home else Path("~/.config").expanduser()) / "lakesync" / "lakesync.toml"
    return path if path.is_file() else None


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, its references followed and its relative paths made absolute.

    Raises:
        ConfigurationError: it cannot be read, a reference leads nowhere, or a secret stands in it.
    """
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for name in _REFERENCES:
        section, _, key = name.rpartition(".")
        holder = _table(data, section, path) if section else data
        if key in holder:
            holder[key] = _resolve(name, holder[key], path)
    for section in ("sources", "adapters"):
        uris = _table(data, section, path)
        for name, uri in uris.items():
            uris[name] = _resolve(f"{section}.{name}.uri", uri, path)
    for place, issuer in enumerate(_tables(_table(data, "gateway", path), "issuers", path)):
        if "secret" in issuer:
            issuer["secret"] = _resolve(f"gateway.issuers.{place}.secret", issuer["secret"], path)
        if isinstance(issuer.get("keys"), str):
            issuer["keys"] = str(path.parent / Path(issuer["keys"]).expanduser())
    stores = _table(_table(data, "shard_config", path), "stores", path)
    for name, url in stores.items():
        stores[name] = _resolve(f"shard_config.stores.{name}.url", url, path)
    if isinstance(data.get("data_dir"), str):
        data["data_dir"] = str(path.parent / Path(data["data_dir"]).expanduser())
    for name in _table(data, "gateways", path):
        gateway = _table(data["gateways"], name, path)
        if isinstance(gateway.get("rules"), str):
            gateway["rules"] = str(path.parent / gateway["rules"])
        if isinstance(gateway.get("schemas"), list):
            gateway["schemas"] = [str(path.parent / str(each)) for each in gateway["schemas"]]
    return data


def _table(holder: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = holder.get(name, {})
    if not isinstance(found, dict):
        raise ConfigurationError(f"{name} in {path} is no table of settings: see `lakesync init` for its form")
    return found


def _tables(holder: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    found = holder.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigurationError(f"{name} in {path} is not a list of tables: write [[gateway.{name}]]")
    return found


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
            variables[name] = pydantic.TypeAdapter(type(value)).dump_json(value, context=REVEAL).decode()
        case _:
            variables[name] = str(value)


def _free_disk(folder: Path) -> int:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def _explain(problem: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """One problem in words and where it stands, without the value where it may be a secret, or hold one."""
    parts = [str(part) for part in problem["loc"]]
    if parts[:2] == ["connectors", "declared"]:
        del parts[1]  # in a file the names of connectors are keys of the section
    name, message = ".".join(parts), str(problem["msg"]).removeprefix("Value error, ")
    if not name:
        return f"{message}."
    place = _place(parts, overrides)
    if problem["type"] == "extra_forbidden":
        others = _beside(parts[:-1])
        near = get_close_matches(parts[-1], others, 1)
        meant = f"is {'.'.join([*parts[:-1], *near])} meant?" if near else f"there are {', '.join(others)}."
        return f"{name} is not a setting{place}; {meant}"
    if problem["type"] == "missing":
        return f"{name} is not set{place}: it is needed there."
    if name in _REFERENCES or not isinstance(problem["input"], str | float | int | None):
        return f"{name}{place}: {message}."
    return f"{name} is {problem['input']!r}{place}: {message}."


def _place(parts: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """In which variable, or on which line of which file, a setting was given."""
    section, key = parts[0], ".".join(parts[1:2])
    given = overrides.get(section)
    if given is not None and (not isinstance(given, Mapping) or key in given):
        return ""
    for variable in (f"LAKESYNC_{section}_{key}".upper(), f"LAKESYNC_{section}".upper()):
        if variable in os.environ:
            return f" (the variable {variable})"
    for path in (config_file(), user_file()):
        line = line_of(path.read_text("utf-8"), parts) if path is not None else None
        if line is not None:
            return f" ({path}, line {line})"
    return ""


def _beside(section: Sequence[str]) -> list[str]:
    """The names of the settings of a section; of the sections themselves for none."""
    fields = Config.model_fields
    if not section:
        return list(fields)
    model = fields[section[0]].annotation if section[0] in fields else None
    if list(section[:2]) == ["gateway", "issuers"]:
        model = DeclaredIssuer
    kinds = [each for each in (model, *get_args(model)) if isinstance(each, type) and issubclass(each, BaseModel)]
    return [name for kind in kinds for name in kind.model_fields]
