"""The source of each setting in effect, for `lakesync config show`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr

from lakesync.cli.options import load_settings
from lakesync.config import Config, config_file, read_file, user_file
from lakesync.model.redaction import SECRET_NAME, without_password

_DERIVED = frozenset(
    {
        *("staging.url", "lake.catalog_uri", "lake.warehouse", "lake.checkpoints", "dagster.home"),
        "limits.max_backpressure_bytes",
    }
)
"""Settings whose default depends on the data folder."""


class SettingSource(NamedTuple):
    """A setting with its value and source."""

    name: str
    """`section.setting`, or `setting` outside of sections."""
    value: Any
    """The value as JSON can have it; "(set)" for a secret; a URI without its password."""
    source: str
    """`--data`, the name of a variable, the path of a file, `derived` (from the data folder), or `default`."""


def setting_sources(data: Path | None) -> list[SettingSource]:
    """Return every setting in effect.

    Args:
        data: the data folder (`--data`); None for that of the settings.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    config = load_settings(data)
    files = [(path, read_file(path)) for path in (config_file(), user_file()) if path is not None]
    return [
        SettingSource(name, value, "--data" if name == "data_dir" and data is not None else _source(name, files))
        for name, value in _flat_settings(config)
    ]


def _flat_settings(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the name and displayed value of every setting."""
    for name in Config.model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            for key in type(value).model_fields:
                yield f"{name}.{key}", _displayed(getattr(value, key))
        elif isinstance(value, dict) and value:
            for key, each in value.items():
                yield f"{name}.{key}", _displayed(each)
        else:
            yield name, _displayed(value)


def _displayed(value: Any) -> Any:
    """Return a value as JSON can have it, without secrets and passwords."""
    match value:
        case SecretStr():
            return "(set)"
        case BaseModel():
            return value.model_dump(mode="json")
        case Path():
            return str(value)
        case str() if "://" in value:
            return without_password(value)
        case tuple():
            return [_displayed(each) for each in value]
        case Mapping():
            return {key: "(set)" if SECRET_NAME.search(key) else _displayed(each) for key, each in value.items()}
    return value


def _source(name: str, files: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """Return where a setting comes from.

    Args:
        name: the setting.
        files: paths and contents of the settings files; the first has precedence.
    """
    section, _, key = name.partition(".")
    for variable in (f"LAKESYNC_{section}_{key}".upper().rstrip("_"), f"LAKESYNC_{section}".upper()):
        if variable in os.environ:
            return variable
    for path, content in files:
        value = content.get(section)
        if value is not None and (not key or (isinstance(value, Mapping) and key in value)):
            return str(path)
    return "derived" if name in _DERIVED else "default"
