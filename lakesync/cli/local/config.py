"""`lakesync config`: shows the settings in effect and where each comes from.

A setting comes from an option, a variable, one of the two files, the data folder, or it has its default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.commands import Data, Json, command_app, examples, load_settings
from lakesync.model.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from lakesync.config import Config

_DERIVED = frozenset(
    {
        *("staging.url", "lake.catalog_uri", "lake.warehouse", "lake.checkpoints", "dagster.home"),
        "limits.max_backpressure_bytes",
    }
)
"""Settings whose default depends on the data folder: its path, or the free space on its disk."""


config_app = command_app(
    "Show the settings in effect and their sources.",
    examples(("lakesync config show --origin", "with the source of each: option, variable, file or default")),
)


def _complete_settings(incomplete: str) -> list[str]:
    """Return the sections and settings that begin with a text, for the shell's completion."""
    with suppress(ConfigurationError):
        names = [each.name for each in _settings_in_effect(None)]
        candidates = dict.fromkeys([*(name.partition(".")[0] for name in names), *names])
        return [name for name in candidates if name.startswith(incomplete)]
    return []


@config_app.command(
    epilog=examples(
        ("lakesync config show", "all settings"),
        ("lakesync config show spark --origin", "one section, with sources"),
        ("lakesync config show gateway.port", "one setting"),
    )
)
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A section, or SECTION.SETTING.", autocompletion=_complete_settings),
    ] = None,
    data: Data = None,
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each setting.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that differ from their default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the settings in effect; of a secret only whether it is set.

    The first that has a setting wins: options, LAKESYNC_* variables, lakesync.toml, ~/.config/lakesync/lakesync.toml.
    """
    selected = [
        setting
        for setting in _settings_in_effect(data)
        if (name is None or setting.name == name or setting.name.startswith(f"{name}."))
        and not (changed and setting.source in ("default", "derived"))
    ]
    if not selected and name is not None and not changed:
        raise NotFoundError(f"there is no setting {name!r}; `lakesync config show` lists all settings")
    columns = ("name=setting", "value", *(("origin=from",) if origin else ()))
    rows = (
        {"name": setting.name, "value": setting.value if as_json else _as_toml(setting.value), "origin": setting.source}
        for setting in selected
    )
    output.print_rows(rows, as_json=as_json, columns=columns, if_empty="all settings have their defaults")


def _as_toml(value: object) -> str | None:
    """Return a value as it would be written in `lakesync.toml`, but strings without quotes."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


class _Setting(NamedTuple):
    """A setting in effect."""

    name: str
    """`section.setting`, or `setting` outside of sections."""
    value: Any
    """The value as JSON can have it; "(set)" for a secret; a URI without its password."""
    source: str
    """`--data`, the name of a variable, the path of a file, `derived` (a default that depends on the data folder), or
    `default`."""


def _settings_in_effect(data: Path | None) -> list[_Setting]:
    """Return every setting in effect. Of a section, each setting has an entry.

    Args:
        data: the data folder (`--data`); None for that of the settings.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    from lakesync.config import config_file, read_file, user_file

    settings = load_settings(data)
    files = [(path, read_file(path)) for path in (config_file(), user_file()) if path is not None]
    return [
        _Setting(name, value, "--data" if name == "data_dir" and data is not None else _source(name, files))
        for name, value in _flat_settings(settings)
    ]


def _flat_settings(settings: Config) -> Iterator[tuple[str, Any]]:
    """Yield the name and displayed value of every setting. A table with a name, such as `[flows.NAME]`, is one too."""
    for name, value in settings.settings():
        if isinstance(value, dict) and value and "." not in name:
            yield from ((f"{name}.{key}", _display_value(each)) for key, each in value.items())
        else:
            yield name, _display_value(value)


def _display_value(value: Any) -> Any:
    """Return a value as JSON can have it, without secrets and passwords."""
    from pydantic import BaseModel, SecretStr

    from lakesync.model.secrets import SECRET_NAME, without_password

    match value:
        case SecretStr():
            return "(set)"
        case BaseModel():
            return {key: _display_value(each) for key, each in value.model_dump(mode="json").items()}
        case Path():
            return str(value)
        case str() if "://" in value:
            return without_password(value)
        case tuple() | list():
            return [_display_value(each) for each in value]
        case Mapping():
            return {key: "(set)" if SECRET_NAME.search(key) else _display_value(each) for key, each in value.items()}
    return value


def _source(name: str, files: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """Return where a setting comes from.

    Args:
        name: the setting.
        files: paths and contents of the settings files; the first has precedence.
    """
    section, _, key = name.partition(".")
    variable, section_variable = f"LAKESYNC_{section}_{key}".upper(), f"LAKESYNC_{section}".upper()
    if key and variable in os.environ:
        return variable
    # a variable that is named like a section has settings of it as JSON
    if section_variable in os.environ and (not key or _has(json.loads(os.environ[section_variable]), key)):
        return section_variable
    for path, content in files:
        if content.get(section) is not None and (not key or _has(content[section], key)):
            return str(path)
    return "derived" if name in _DERIVED else "default"


def _has(section: object, key: str) -> bool:
    """Return whether a section sets a setting; its tables `[connectors.NAME]` are the setting `connectors.declared`."""
    if not isinstance(section, Mapping):
        return False
    return key in section or (key == "declared" and any(isinstance(each, Mapping) for each in section.values()))
