"""Finds and reads the TOML files of the configuration, and finds the line of a setting for error messages.

There are two files: the project's `lakesync.toml`, and the user's own. A file contains no secret itself, but a
*reference* to an environment variable or another file. `config.settings` reads the files, `config.loading` names
their lines in errors, and `lakesync config show --origin` lists what each file sets. `[gateway]` is the server, and
`[gateways.NAME]` one app's stream of changes on it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import REFERENCE_PREFIXES, has_credentials, read_reference

SECRETS = (
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
"""Settings that may contain a secret. In a file they must be references, unless they are a URL without credentials. A
name without a dot is a setting at the top of the file."""

_PATHS = ("data_dir", "clock_offset_file", "dagster.home", "lake.checkpoints")
"""Settings that are a path. Those of `[gateways]` and `[[gateway.issuers]]` are listed in `read_file`."""
_TABLE = re.compile(r"\s*(\[\[?)([^\]]+)\]\]?\s*(?:#.*)?")
"""A line that starts a table, such as `[gateway]` or `[[gateway.issuers]]`: brackets before its name, and the name."""
_KEY = re.compile(r"\s*([^=#\[{]+?)\s*=")
"""The start of a line that assigns a setting."""


def config_file() -> Path | None:
    """Return the project's file: the one that `LAKESYNC_CONFIG` names, else `lakesync.toml` in the current folder.

    Returns:
        The path; None if there is no such file, or if `LAKESYNC_CONFIG` is empty, which disables all files.

    Raises:
        ConfigurationError: the file that `LAKESYNC_CONFIG` names does not exist, or its `~` has no folder.
    """
    value = os.environ.get("LAKESYNC_CONFIG")
    if value is None:
        default = Path("lakesync.toml")
        return default.absolute() if default.is_file() else None
    if not value:
        return None
    path = expanded(value, "LAKESYNC_CONFIG").absolute()
    if not path.is_file():
        raise ConfigurationError(f"LAKESYNC_CONFIG is {path}, but there is no such file; correct or unset it.")
    return path


def user_file() -> Path | None:
    """Return the user's own file: `lakesync/lakesync.toml` in `XDG_CONFIG_HOME`, else in `~/.config`.

    Returns:
        The path; None if there is no such file, or if `LAKESYNC_CONFIG` is empty, which disables all files.
    """
    if os.environ.get("LAKESYNC_CONFIG") == "":
        return None
    home = os.environ.get("XDG_CONFIG_HOME")
    try:
        path = (Path(home) if home else Path("~/.config").expanduser()) / "lakesync" / "lakesync.toml"
    except RuntimeError:  # the process's user has no home folder, as in some containers
        return None
    return path if path.is_file() else None


def read_file(path: Path) -> dict[str, Any]:
    """Read a TOML file, resolve its secret references and make its relative paths absolute.

    Args:
        path: the file. Relative paths in it are relative to its folder.

    Returns:
        The settings as nested dictionaries, not validated yet.

    Raises:
        ConfigurationError: the file cannot be read, a reference or a `~` cannot be resolved, or a secret is not a
            reference.
    """
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for name in (*SECRETS, *_PATHS):
        section, _, key = name.rpartition(".")
        table = _table(data, section, path) if section else data
        if key in table:
            table[key] = _absolute(table[key], path) if name in _PATHS else _resolve(name, table[key], path)
    uris = _table(data, "adapters", path)
    for name, uri in uris.items():
        uris[name] = _resolve(f"adapters.{name}.uri", uri, path)
    sources = _table(data, "sources", path)
    for name, source in sources.items():
        if not isinstance(source, dict):
            sources[name] = _resolve(f"sources.{name}.uri", source, path)
        elif "uri" in source:
            source["uri"] = _resolve(f"sources.{name}.uri", source["uri"], path)
    for number, issuer in enumerate(_tables(_table(data, "gateway", path), "issuers", path)):
        if "secret" in issuer:
            issuer["secret"] = _resolve(f"gateway.issuers.{number}.secret", issuer["secret"], path)
        if "keys" in issuer:
            issuer["keys"] = _absolute(issuer["keys"], path)
    stores = _table(_table(data, "shard_config", path), "stores", path, "shard_config.")
    for name, url in stores.items():
        stores[name] = _resolve(f"shard_config.stores.{name}.url", url, path)
    for name in _table(data, "gateways", path):
        gateway = _table(data["gateways"], name, path, "gateways.")
        if "rules" in gateway:
            gateway["rules"] = _absolute(gateway["rules"], path)
        if isinstance(gateway.get("schemas"), list):
            gateway["schemas"] = [_absolute(each, path) for each in gateway["schemas"]]
    return data


def line_of(text: str, name: Sequence[str]) -> int | None:
    """Return the line of a TOML text that sets a setting, or the nearest table that contains it.

    Args:
        text: the TOML text.
        name: the parts of the setting's name, section first; in a list of tables, the table's index is a part.

    Returns:
        The line number, counted from 1; None if the text sets nothing of the section.
    """
    longest, line = 0, None
    for number, path in _assignments(text):
        common = min(len(path), len(name))
        # the line sets the setting, a table that contains it, or a part of it
        if path[:common] == list(name[:common]) and common > longest:
            longest, line = common, number
    return line


def expanded(path: str, source: str) -> Path:
    """Return a path with its `~` or `~USER` replaced by that user's home folder.

    Args:
        path: the path.
        source: the setting or file that contains it, for the message.

    Raises:
        ConfigurationError: there is no such folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(
            f"{source} has {path!r}, but there is no such home folder; write it in full."
        ) from None


def _table(parent: dict[str, Any], name: str, path: Path, section: str = "") -> dict[str, Any]:
    """Return a TOML table of a file; an empty one if it is missing.

    Args:
        parent: the table that contains it.
        name: its name there.
        path: the file, for the message.
        section: the name of `parent`, with a full stop at its end; empty for the top of the file.

    Raises:
        ConfigurationError: the setting is not a table.
    """
    table = parent.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{section}{name} in {path} is not a table; write [{section}{name}]")
    return table


def _tables(parent: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    """Return a list of TOML tables of the file at `path`; an empty one if it is missing.

    Raises:
        ConfigurationError: the setting is not a list of tables.
    """
    tables = parent.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ConfigurationError(f"{name} in {path} is not a list of tables; write [[gateway.{name}]]")
    return tables


def _absolute(value: object, path: Path) -> object:
    """Return a path in the file at `path` as an absolute one; a URI, an empty text or another type unchanged.

    Raises:
        ConfigurationError: its `~` has no folder.
    """
    if not isinstance(value, str) or not value or "://" in value:
        return value
    return str(path.parent / expanded(value, str(path)))


def _resolve(name: str, value: object, path: Path) -> object:
    """Return the value that a reference names, or a URL without credentials unchanged.

    Args:
        name: the setting. The end of its name, `uri` or `url`, says whether it is a URL.
        value: the setting's value in the file.
        path: the file; a reference to another file is relative to its folder.

    Raises:
        ConfigurationError: the reference cannot be resolved, or the value is neither a reference nor such a URL.
    """
    if name.endswith("uri") and str(value).startswith("file:///"):
        return value  # a location, not a reference to a file
    if str(value).startswith(REFERENCE_PREFIXES):
        return read_reference(f"{name} in {path}", str(value), path.parent)
    if name.endswith(("uri", "url")) and not has_credentials(str(value)):
        return value
    raise ConfigurationError(f'{name} in {path} is a secret; write a reference to it, "env:NAME" or "file:PATH".')


def _assignments(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield `(line number, parts of the full name)` for each line that starts a table or assigns a value."""
    table: list[str] = []
    counts = Counter[str]()  # name of a list of tables → its tables so far
    for number, line in enumerate(text.split("\n"), 1):
        if match := _TABLE.fullmatch(line.rstrip("\r")):
            table = _key_parts(match[2])
            if match[1] == "[[":
                name = ".".join(table)
                table.append(str(counts[name]))
                counts[name] += 1
            yield number, table
        elif match := _KEY.match(line):
            yield number, [*table, *_key_parts(match[1])]


def _key_parts(key: str) -> list[str]:
    """Split a dotted TOML key into its parts, without their quotes."""
    try:
        # a table for each part but the last: `a.b = 0` is {"a": {"b": 0}}
        nested: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return [key]
    parts = []
    while isinstance(nested, dict):
        part, nested = next(iter(nested.items()))
        parts.append(part)
    return parts
