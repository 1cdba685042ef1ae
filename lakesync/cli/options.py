"""The options that many commands have, each spelled once."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from lakesync.cli import completion

if TYPE_CHECKING:
    from lakesync.config import Config

Data = Annotated[Path | None, typer.Option("--data", help="The folder that keeps everything.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object a line, instead of a table or sentences.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_REMOTE = "Connection"
Url = Annotated[
    str | None,
    typer.Option("--url", help="The gateway's address.", show_default=False, rich_help_panel=_REMOTE),
]
Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        "-g",
        help="The gateway id.",
        show_default=False,
        rich_help_panel=_REMOTE,
        autocompletion=completion.gateways,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="Holds the token; else LAKESYNC_TOKEN, or one made with the secret of the data folder.",
        show_default=False,
        rich_help_panel=_REMOTE,
    ),
]


Claim = Annotated[
    list[str] | None,
    typer.Option("--claim", help="NAME=VALUE in the token that is made; repeat it for a list.", show_default=False),
]


def settings(data: Path | None = None, **sections: Any) -> Config:
    """The configuration in force, under what the command line says.

    Raises:
        ConfigurationError: a setting cannot be used.
    """
    from lakesync.config import load

    return load(given(data_dir=data, **sections))


def given(**values: Any) -> dict[str, Any]:
    """What was given on the command line; the rest is left to variables and files."""
    return {name: value for name, value in values.items() if value not in (None, {})}


@contextmanager
def reading(path: Path) -> Iterator[TextIO]:
    """A file's text, line by line as it stands in UTF-8, without a mark of the byte order; `-` is stdin.

    Raises:
        typer.BadParameter: it cannot be opened.
    """
    with ExitStack() as closing:
        try:
            raw = sys.stdin.buffer if str(path) == "-" else closing.enter_context(path.open("rb"))
        except OSError as error:
            raise typer.BadParameter(f"{path} cannot be read: {error}") from error
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="\n")
        closing.callback(text.detach)
        yield text


def read_text(path: Path) -> str:
    """A file's text; `-` is stdin.

    Raises:
        typer.BadParameter: it cannot be read.
        ValidationError: it is no text.
    """
    from lakesync.model.errors import ValidationError

    try:
        with reading(path) as text:
            return text.read()
    except UnicodeDecodeError as error:
        raise ValidationError(f"{path} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """A file's JSON value; `-` is stdin.

    Raises:
        typer.BadParameter: it cannot be read.
        ValidationError: it is no JSON.
    """
    from lakesync.model.errors import ValidationError

    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error


def claims_of(text: str | None) -> dict[str, str | list[str]] | None:
    """Claims as `--as` gives them: JSON, `@FILE`, or `NAME=VALUE,NAME=VALUE`, where a repeated name is a list.

    Raises:
        typer.BadParameter: they are of no such form.
    """
    if text is None:
        return None
    if text.startswith("@"):
        text = read_text(Path(text[1:]))
    if text.lstrip().startswith("{"):
        return _checked_claims(text)
    claims: dict[str, str | list[str]] = {}
    for each in filter(None, text.split(",")):
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"claims {text!r}: write JSON, or NAME=VALUE,NAME=VALUE; {each!r} is neither")
        before = claims.get(name.strip())
        claims[name.strip()] = value if before is None else [*([before] if isinstance(before, str) else before), value]
    return claims


def named_claims(given: list[str] | None) -> dict[str, str | list[str]]:
    """Claims as `--claim` gives them, one at a time.

    Raises:
        typer.BadParameter: one is of another form.
    """
    claims: dict[str, str | list[str]] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--claim is {each!r}, it must read NAME=VALUE")
        before = claims.get(name)
        claims[name] = value if before is None else [*([before] if isinstance(before, str) else before), value]
    return claims


def _checked_claims(text: str) -> dict[str, str | list[str]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"claims {text!r} are not JSON: {error}") from error
    for name, value in found.items():
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(each, str) for each in value)
        ):
            raise typer.BadParameter(f"claim {name!r} is {value!r}: rules read texts and lists of texts alone")
    claims: dict[str, str | list[str]] = found
    return claims
