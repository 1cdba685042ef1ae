"""Where each setting in force comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, SecretStr

from lakesync.cli.options import settings
from lakesync.config import Config, config_file, read_file, user_file

_DERIVED = frozenset(
    {
        *("staging.url", "lake.catalog_uri", "lake.warehouse", "lake.checkpoints", "dagster.home"),
        "limits.max_backpressure_bytes",
    }
)
"""What follows from the data folder where nobody says otherwise."""
_SECRET = re.compile("pass|secret|token|credential|access.?key", re.IGNORECASE)
"""What names a secret among a URL's options and Spark's settings."""


class Setting(NamedTuple):
    """One setting."""

    name: str
    """`section.setting`."""
    value: Any
    """As JSON has it; of a secret only that there is one."""
    origin: str
    """`--data`, a variable's name, a file's path, `derived` from the data folder, or `default`."""


def origins(data: Path | None) -> list[Setting]:
    """Every setting, in the order of lakesync.toml.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    config = settings(data)
    files = [(path, read_file(path)) for path in (config_file(), user_file()) if path is not None]
    return [
        Setting(name, value, "--data" if name == "data_dir" and data is not None else _origin(name, files))
        for name, value in _flat(config)
    ]


def _flat(config: Config) -> Iterator[tuple[str, Any]]:
    for name in Config.model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            for key in type(value).model_fields:
                yield f"{name}.{key}", _shown(getattr(value, key))
        elif isinstance(value, dict) and value:
            for key, each in value.items():
                yield f"{name}.{key}", _shown(each)
        else:
            yield name, _shown(value)


def _shown(value: Any) -> Any:
    match value:
        case SecretStr():
            return "(set)"
        case BaseModel():
            return value.model_dump(mode="json")
        case Path():
            return str(value)
        case str() if "://" in value:
            return _without_password(value)
        case tuple():
            return [_shown(each) for each in value]
        case Mapping():
            return {key: "(set)" if _SECRET.search(key) else _shown(each) for key, each in value.items()}
    return value


def _without_password(url: str) -> str:
    """A URL with its password left out, wherever it has one."""
    scheme, separator, rest = url.partition("://")
    end = max(rest.partition("/")[0].rfind("@"), rest.partition("?")[0].rfind("@"))  # a password may have any of them
    user, colon, _ = rest[: end + 1].partition(":")
    place, question, query = rest[end + 1 :].partition("?")
    options = (option.partition("=") for option in query.split("&"))
    return (
        f"{scheme}{separator}{user}"
        + (":…@" if colon else "")
        + place
        + question
        + "&".join(f"{key}{equals}{'…' if _SECRET.search(key) else each}" for key, equals, each in options)
    )


def _origin(name: str, files: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    section, _, key = name.partition(".")
    for variable in (f"LAKESYNC_{section}_{key}".upper().rstrip("_"), f"LAKESYNC_{section}".upper()):
        if variable in os.environ:
            return variable
    for path, content in files:
        found = content.get(section)
        if found is not None and (not key or (isinstance(found, Mapping) and key in found)):
            return str(path)
    return "derived" if name in _DERIVED else "default"
