"""`lakesync config`: shows the settings in effect and where each comes from."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json

app = command_app(
    "Show the settings in effect and their sources.",
    examples(("lakesync config show --origin", "with the source of each: option, variable, file or default")),
)


def _completed_settings(incomplete: str) -> list[str]:
    """Return the sections and settings that start with what was typed, for shell completion."""
    from lakesync.cli.local.setting_sources import setting_sources
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        names = [each.name for each in setting_sources(None)]
        candidates = dict.fromkeys([*(name.partition(".")[0] for name in names), *names])
        return [name for name in candidates if name.startswith(incomplete)]
    return []


@app.callback()
def config() -> None:
    """Show the settings in effect and their sources."""


@app.command(
    epilog=examples(
        ("lakesync config show", "all settings"),
        ("lakesync config show spark --origin", "one section, with sources"),
        ("lakesync config show gateway.port", "one setting"),
    )
)
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A section, or SECTION.SETTING.", autocompletion=_completed_settings),
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

    Options beat LAKESYNC_* variables, these lakesync.toml, and that ~/.config/lakesync/lakesync.toml.
    """
    from lakesync.cli.local.setting_sources import setting_sources
    from lakesync.model.errors import NotFoundError

    selected = [
        setting
        for setting in setting_sources(data)
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
    output.records(rows, as_json=as_json, columns=columns, none="all settings have their defaults")


def _as_toml(value: object) -> str | None:
    """Return a value as it would be written in `lakesync.toml`, but strings without quotes."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
