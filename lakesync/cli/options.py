"""Command-line options that several commands share, and functions that parse their values.

An option is the type of a command's parameter, such as `as_json: Json = False`. `ConnectionOptions` adds four options.
`load_settings` reads the settings, which options override. The modules of commands import them.

The shell's completion of gateway ids and table names reads the local settings. It never calls a gateway and prints no
error, because its output goes into the user's command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.config import Config


def declared_gateways(config: Config) -> list[str]:
    """Return the ids of the gateways in the settings, `[remote] gateway` included, in alphabetical order."""
    return sorted({*config.gateways, *filter(None, [config.remote.gateway])})


def complete_gateways(incomplete: str) -> list[str]:
    """Complete a gateway id: return the declared ones that begin with a text."""
    config = _settings_or_none()
    return [] if config is None else [name for name in declared_gateways(config) if name.startswith(incomplete)]


def complete_tables(incomplete: str) -> list[str]:
    """Complete a table's name: return the tables of the settings' schema files that begin with a text."""
    config = _settings_or_none()
    names = set()
    for gateway in config.gateways.values() if config is not None else ():
        for path in gateway.schemas:
            with suppress(OSError, ValueError, KeyError, TypeError):
                names.add(str(json.loads(Path(path).read_text("utf-8"))["table"]))
    return sorted(name for name in names if name.startswith(incomplete))


def _settings_or_none() -> Config | None:
    """Return the settings; None if one is invalid, because completion prints no errors."""
    from lakesync.config import load
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        return load()
    return None


Data = Annotated[Path | None, typer.Option("--data", help="The data folder; default: data_dir of the settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

RowTable = Annotated[str, typer.Argument(metavar="TABLE", help="The row's table.", autocompletion=complete_tables)]
RowId = Annotated[str, typer.Argument(metavar="ROW", help="The row's id.")]
Client = Annotated[str | None, typer.Option("--client", "-c", help="The client; default: the token's sub.")]

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway's URL; default: [remote] url, else that of a running `lakesync up`.",
    ),
]
Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        "-g",
        help="The gateway id; default: that of the token, else [remote] gateway.",
        autocompletion=complete_gateways,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the token; default: LAKESYNC_TOKEN, else a token signed with the data folder's secret.",
    ),
]


@dataclass(frozen=True)
class ConnectionOptions:
    """Adds the options that choose a gateway and a token to each command that has a parameter of this type."""

    url: Url = None
    gateway: Gateway = None
    token_file: TokenFile = None
    data: Data = None

    @cached_property
    def settings(self) -> Config:
        """The settings, which are loaded once."""
        return load_settings(self.data)

    def connect(self, **arguments: Any) -> GatewayConnection:
        """Return the connection to the gateway. No request is sent yet.

        Args:
            arguments: further arguments of `lakesync.cli.connection.connect`, or others instead of the options.

        Raises:
            ConfigurationError: no gateway is chosen, or a setting or an option is invalid.
            AuthError: the token cannot be used.
        """
        from lakesync.cli.connection import connect

        options = {"url": self.url, "gateway": self.gateway, "token_file": self.token_file}
        return connect(self.settings, **{**options, **arguments})


Claim = Annotated[
    list[str] | None, typer.Option("--claim", help="NAME=VALUE in the token that is signed here; repeat for a list.")
]


def load_settings(data: Path | None = None, **sections: Any) -> Config:
    """Load the configuration with the overrides of the command line.

    Example: `load_settings(data, remote={"url": url})` overrides `[remote] url`.

    Args:
        data: the data folder (`--data`); None for that of the settings.
        sections: name of a section of `lakesync.toml` → its settings that options override.

    Raises:
        ConfigurationError: a setting is invalid.
    """
    from lakesync.config import load

    return load(overrides(data_dir=data, **sections))


def overrides(**values: Any) -> dict[str, Any]:
    """Return the options that have a value, as overrides of settings; None and {} mean that an option is absent."""
    return {name: value for name, value in values.items() if value not in (None, {})}


def parse_claims(text: str | None) -> dict[str, str | list[str]] | None:
    """Parse the value of `--as`: the claims of the client in whose place a command evaluates rules.

    Args:
        text: a JSON object, `@FILE` for the name of a file with the claims in one of the other forms, or
            `NAME=VALUE,NAME=VALUE`, in which a repeated name makes a list.

    Returns:
        The claims; None for None.

    Raises:
        typer.BadParameter: the text has none of these forms.
    """
    from lakesync.cli.input_files import read_text

    if text is None:
        return None
    if text.startswith("@"):
        text = read_text(Path(text[1:])).strip()  # an editor ends the file with a newline
    if text.lstrip().startswith("{"):
        return _parse_json_claims(text)
    return _parse_pairs(filter(None, text.split(",")), f"the claims {text!r}")


def parse_claim_options(options: list[str] | None) -> dict[str, str | list[str]]:
    """Parse the values of repeated `--claim` options.

    Raises:
        typer.BadParameter: a value is not NAME=VALUE.
    """
    return _parse_pairs(options or (), "--claim")


def _parse_pairs(pairs: Iterable[str], where: str) -> dict[str, str | list[str]]:
    """Parse claims of the form NAME=VALUE; a repeated name makes a list. Spaces around a name are removed.

    Raises:
        typer.BadParameter: a pair has another form; the message says `where` it is.
    """
    claims: dict[str, str | list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} in {where} is not NAME=VALUE")
        earlier = claims.get(name, [])
        claims[name] = [*([earlier] if isinstance(earlier, str) else earlier), value] if name in claims else value
    return claims


def _parse_json_claims(text: str) -> dict[str, str | list[str]]:
    """Parse a JSON object of claims, whose values are strings or lists of strings.

    Raises:
        typer.BadParameter: the text is not such an object.
    """
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"the claims {text!r} are not JSON: {error}") from error
    for name, value in decoded.items():
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        ):
            raise typer.BadParameter(f"claim {name!r} is {value!r}; rules read strings and lists of strings only")
    claims: dict[str, str | list[str]] = decoded
    return claims
