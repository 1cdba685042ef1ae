"""Command-line options that several commands share, and helpers to parse their values.

An option is a type that a command's parameter has, such as `as_json: Json = False`. The modules of commands import
them. Shell completion of gateway ids and table names reads the local settings. It never calls a gateway and never
prints an error, because its output goes into the user's command line.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from lakesync.config import Config


def complete_gateways(incomplete: str) -> list[str]:
    """Return the gateway ids of the settings, `[remote] gateway` included, that begin with a text, for completion."""
    config = _settings_or_none()
    if config is None:
        return []
    ids = {*config.gateways, *filter(None, [config.remote.gateway])}
    return sorted(name for name in ids if name.startswith(incomplete))


def complete_tables(incomplete: str) -> list[str]:
    """Return the tables of the schema files in the settings that begin with a text, for completion."""
    config = _settings_or_none()
    names = set()
    for gateway in config.gateways.values() if config is not None else ():
        for path in gateway.schemas:
            with suppress(OSError, ValueError, KeyError, TypeError):
                names.add(str(json.loads(Path(path).read_text("utf-8"))["table"]))
    return sorted(name for name in names if name.startswith(incomplete))


def _settings_or_none() -> Config | None:
    """Return the configuration; None if it is invalid, because completion prints no errors."""
    from lakesync.config import load
    from lakesync.model.errors import ConfigurationError

    with suppress(ConfigurationError):
        return load()
    return None


Data = Annotated[
    Path | None,
    typer.Option("--data", help="The data folder; default: data_dir of the settings.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

RowTable = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="The row's table.", show_default=False, autocompletion=complete_tables),
]
RowId = Annotated[str, typer.Argument(metavar="ROW", help="The row's id.", show_default=False)]
Client = Annotated[
    str | None, typer.Option("--client", "-c", help="The client; default: the token's sub.", show_default=False)
]

_CONNECTION = "Connection"
"""Heading of `--url`, `--gateway` and `--token-file` in the help."""
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The gateway's URL; default: [remote] url, else that of a running `lakesync up`.",
        show_default=False,
        rich_help_panel=_CONNECTION,
    ),
]
Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        "-g",
        help="The gateway id; default: that of the token, else [remote] gateway.",
        show_default=False,
        rich_help_panel=_CONNECTION,
        autocompletion=complete_gateways,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the token; default: LAKESYNC_TOKEN, else a token signed with the data folder's secret.",
        show_default=False,
        rich_help_panel=_CONNECTION,
    ),
]


Claim = Annotated[
    list[str] | None,
    typer.Option("--claim", help="NAME=VALUE in the token that is signed here; repeat for a list.", show_default=False),
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


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file, with or without a byte order mark, without translating line ends.

    Reading it raises UnicodeDecodeError if it is not UTF-8.

    Args:
        path: the file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be opened.
    """
    with ExitStack() as stack:
        try:
            raw = sys.stdin.buffer if str(path) == "-" else stack.enter_context(path.open("rb"))
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error}") from error
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="\n")
        stack.callback(text.detach)  # so that `text` does not close stdin when it is garbage-collected
        yield text


def read_text(path: Path) -> str:
    """Return the text of a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the file is not UTF-8.
    """
    from lakesync.model.errors import ValidationError

    try:
        with open_text(path) as text:
            return text.read()
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """Return the JSON value in a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the file is not JSON.
    """
    from lakesync.model.errors import ValidationError

    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error


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
    if text is None:
        return None
    if text.startswith("@"):
        text = read_text(Path(text[1:])).strip()  # an editor ends the file with a newline
    if text.lstrip().startswith("{"):
        return _parse_json_claims(text)
    claims: dict[str, str | list[str]] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not name.strip() or not equals:
            raise typer.BadParameter(
                f"{part!r} in the claims {text!r} is not NAME=VALUE; write JSON, @FILE or NAME=VALUE,NAME=VALUE"
            )
        _add_claim(claims, name, value)
    return claims


def parse_claim_options(options: list[str] | None) -> dict[str, str | list[str]]:
    """Parse the values of repeated `--claim` options.

    Raises:
        typer.BadParameter: a value is not NAME=VALUE.
    """
    claims: dict[str, str | list[str]] = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not name.strip() or not equals:
            raise typer.BadParameter(f"--claim is {option!r}; it must be NAME=VALUE")
        _add_claim(claims, name, value)
    return claims


def _add_claim(claims: dict[str, str | list[str]], name: str, value: str) -> None:
    """Add a claim, whose name may be between spaces; a repeated name makes a list."""
    name = name.strip()
    earlier = claims.get(name)
    claims[name] = value if earlier is None else [*([earlier] if isinstance(earlier, str) else earlier), value]


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
