"""`lakesync config`: the settings in force."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json

app = command_app(
    "Show the settings in force, and where each comes from.",
    examples(("lakesync config show --origin", "flag, variable, file or default")),
)


def _completed_settings(incomplete: str) -> list[str]:
    """The sections, and the settings in them."""
    from lakesync.cli.local.setting_sources import origins
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        names = [each.name for each in origins(None)]
        known = dict.fromkeys([*(name.partition(".")[0] for name in names), *names])
        return [name for name in known if name.startswith(incomplete)]
    return []


@app.callback()
def config() -> None:
    """Show the settings in force, and where each comes from."""


@app.command(
    epilog=examples(
        ("lakesync config show", "every setting"),
        ("lakesync config show spark --origin", "a section's, and where each comes from"),
        ("lakesync config show gateway.port", "one"),
    )
)
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A section, or SECTION.SETTING.", autocompletion=_completed_settings),
    ] = None,
    data: Data = None,
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each comes from.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only those that are no defaults.")] = False,
    as_json: Json = False,
) -> None:
    """Show the settings in force. Of a secret only whether there is one.

    A flag beats a LAKESYNC_* variable, that lakesync.toml, and that ~/.config/lakesync/lakesync.toml.
    """
    from lakesync.cli.local.setting_sources import origins
    from lakesync.model.errors import NotFoundError

    found = [
        each
        for each in origins(data)
        if (name is None or each.name == name or each.name.startswith(f"{name}."))
        and not (changed and each.origin in ("default", "derived"))
    ]
    if not found and name is not None and not changed:
        raise NotFoundError(f"there is no setting {name!r}; `lakesync config show` lists them all")
    columns = ("name=setting", "value", *(("origin=from",) if origin else ()))
    rows = (
        {"name": each.name, "value": each.value if as_json else in_words(each.value), "origin": each.origin}
        for each in found
    )
    output.records(rows, as_json=as_json, columns=columns, none="every setting has its default")


def in_words(value: object) -> str | None:
    """A setting's value as the file would have it."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
