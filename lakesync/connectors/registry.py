"""The registry of connector types: validates connectors' configurations for storage, and opens stored ones for use.

A connector connects a gateway, one app's stream of changes, with an external system, such as Jira. The gateway's server
validates its configuration and seals it before it is stored: the secrets are encrypted. Actions and the pipeline's
polls open it: the secrets become plain text again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import msgspec

from lakesync.connectors.base import ConnectorConfig, ConnectorType
from lakesync.connectors.built_in import BUILT_IN
from lakesync.connectors.host_policy import HostPolicy
from lakesync.connectors.secrets import Secrets
from lakesync.model.action_handlers import ConnectorDescriptor
from lakesync.model.errors import ConfigurationError, ValidationError
from lakesync.model.json_schema import JsonSchema
from lakesync.model.schema import is_identifier
from lakesync.model.types import StoredConnector

if TYPE_CHECKING:
    from lakesync.config import Config

GROUP = "lakesync.connectors"
"""Entry point group of further types; each entry is a `ConnectorType`, under its type's name."""

_FIELDS = ("name", "type", "ingest")
"""The fields of a connector that all types share."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The form of a connector's name."""


class Connectors:
    """Validates configurations and seals their secrets before they are stored, and opens them when they are used."""

    def __init__(
        self,
        secrets: Secrets | None = None,
        types: Iterable[ConnectorType] | None = None,
        hosts: HostPolicy | None = None,
    ) -> None:
        """Create a registry.

        Args:
            secrets: seals and opens the connectors' secrets.
            types: the connector types; None for the built-in and installed ones.
            hosts: the hosts that connectors may call; None allows every public host.
        """
        self._hosts = hosts or HostPolicy()
        self._secrets = secrets or Secrets()
        self._given = None if types is None else tuple(types)

    @classmethod
    def configured(cls, config: Config) -> Connectors:
        """Create a registry of installed types with the secret keys, allowed references and hosts of a configuration.

        Raises:
            ConfigurationError: a key is too short, a pattern of allowed references does not separate gateways, or an
                installed type cannot be loaded.
        """
        keys = [key.get_secret_value() for key in (config.secret_key, config.secret_key_previous) if key is not None]
        registry = cls(
            Secrets([key for key in keys if key], config.connectors.allowed_references),
            hosts=HostPolicy(config.connectors.allowed_hosts),
        )
        registry.descriptors()  # fail at the start if a package cannot be loaded
        return registry

    def find(self, name: str) -> ConnectorType | None:
        """Return a type by name; None if it is not installed."""
        return self._types.get(name)

    def descriptors(self) -> list[ConnectorDescriptor]:
        """Return the descriptor of every type, by name."""
        return [self._types[name].descriptor for name in sorted(self._types)]

    def seal(self, gateway: str, body: Any) -> StoredConnector:
        """Validate the body of a request that registers a connector, and return the connector with sealed secrets.

        Args:
            gateway: the id of the gateway that registers the connector.
            body: the decoded JSON, `{name, type, TYPE: {…}, ingest?}`, where TYPE is the value of `type`.

        Raises:
            ValidationError: names the field and what is allowed; never contains a secret.
        """
        if not isinstance(body, Mapping):
            raise ValidationError("a connector is a JSON object: {name, type, TYPE: {…}, ingest?}")
        name, type_name = body.get("name"), body.get("type")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValidationError("name must be 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first")
        if not isinstance(type_name, str) or (connector_type := self.find(type_name)) is None:
            raise ValidationError(f"type {type_name!r} is unknown: known are {', '.join(sorted(self._types))}")
        fields = (*_FIELDS, type_name)
        unknown = [field for field in body if field not in fields]
        if unknown:
            raise ValidationError(f"a connector has no field {unknown[0]!r}: its fields are {', '.join(fields)}")
        descriptor = connector_type.descriptor
        settings: Any = body.get(type_name)
        ingest: Any = body.get("ingest")
        fault = JsonSchema(descriptor.config_schema, type_name).violation(settings, type_name)
        if fault is None and ingest is not None:
            fault = JsonSchema(descriptor.ingest_schema, "ingest").violation(ingest, "ingest") or _table_fault(ingest)
        if fault is not None:
            raise ValidationError(fault)
        for field in sorted(descriptor.urls & settings.keys()):
            self._check_url(f"{type_name}.{field}", settings[field])
        stored = {
            field: self._secrets.seal(gateway, name, field, value) if field in descriptor.secrets else value
            for field, value in settings.items()
        }
        return StoredConnector(name, type_name, stored, ingest)

    def open(self, gateway: str, stored: StoredConnector) -> ConnectorConfig:
        """Return a connector's configuration with its secrets in plain text.

        Args:
            gateway: the gateway id.
            stored: the connector as `seal` returned it.

        Raises:
            ConfigurationError: the type is not installed, or a secret or file cannot be read. The message names the
                setting.
        """
        connector_type = self.find(stored.type)
        if connector_type is None:
            raise ConfigurationError(f"connector {stored.name!r} has the type {stored.type!r}, which is not installed")
        secret_fields = connector_type.descriptor.secrets
        for field in connector_type.descriptor.files & stored.settings.keys():
            self._secrets.check_file(gateway, stored.name, field, stored.settings[field])
        settings = {
            field: self._secrets.reveal(gateway, stored.name, field, value) if field in secret_fields else value
            for field, value in stored.settings.items()
        }
        return ConnectorConfig(
            gateway,
            stored.name,
            stored.type,
            settings,
            stored.ingest,
            self._hosts,
            may_use_server_identity=self._secrets.lends_identity(gateway),
        )

    @property
    def has_older_key(self) -> bool:
        """Whether secrets may be sealed with an older key."""
        return self._secrets.has_older_key

    def reseal(self, stored: StoredConnector) -> StoredConnector:
        """Return the connector with its secrets sealed with the current key. A secret that cannot be opened stays."""
        connector_type = self.find(stored.type)
        secret_fields = connector_type.descriptor.secrets if connector_type is not None else frozenset()
        settings = {
            field: self._secrets.reseal(value) if field in secret_fields else value
            for field, value in stored.settings.items()
        }
        return msgspec.structs.replace(stored, settings=settings)

    @cached_property
    def _types(self) -> Mapping[str, ConnectorType]:
        """Name → type."""
        return _by_name(installed_types() if self._given is None else self._given)

    def _check_url(self, setting: str, url: str) -> None:
        """Raise ValidationError if connectors may not call a URL's host."""
        try:
            self._hosts.check(setting, url)
        except ConfigurationError as error:
            raise ValidationError(str(error)) from None


def installed_types() -> list[ConnectorType]:
    """Return the built-in types and those of installed packages.

    Raises:
        ConfigurationError: an entry point cannot be loaded, or is not a `ConnectorType` of its name.
    """
    found = list(BUILT_IN)
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            raise ConfigurationError(
                f"the connector type {entry.name!r} ({entry.value}) cannot be loaded: {error}"
            ) from error
        if not isinstance(loaded, ConnectorType) or loaded.descriptor.type != entry.name:
            raise ConfigurationError(
                f"the entry point {entry.name!r} ({entry.value}) is not a connector type of that name"
            )
        found.append(loaded)
    return found


def _by_name(types: Iterable[ConnectorType]) -> dict[str, ConnectorType]:
    """Return the types by name.

    Raises:
        ConfigurationError: a name is reserved or used twice, or a type's JSON Schema is invalid.
    """
    known: dict[str, ConnectorType] = {}
    for each in types:
        name = each.descriptor.type
        if name in _FIELDS:
            raise ConfigurationError(f"the name {name!r} is reserved: choose another name for the connector type")
        if name in known:
            raise ConfigurationError(f"two packages define the connector type {name!r}: uninstall one")
        JsonSchema(each.descriptor.config_schema, f"connector type {name!r}")
        JsonSchema(each.descriptor.ingest_schema, f"the ingest of connector type {name!r}")
        known[name] = each
    return known


def _table_fault(ingest: Mapping[str, Any]) -> str | None:
    """Return an error message if the name of a table in `ingest` is not an identifier; otherwise None."""
    for index, table in enumerate(ingest.get("tables", ())):
        if not is_identifier(table["table"]):
            return (
                f"ingest.tables[{index}].table must be an identifier: letters, digits and _, at most 64, no digit first"
            )
    return None
