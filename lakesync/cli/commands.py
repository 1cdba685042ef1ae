"""The parts that all commands have in common: a typer app for each module, examples in the help, and shared options.

Every module with commands uses them. `command_app` creates the typer app to which a module adds its commands, and
`examples` the end of their help. All commands get the same plain-text help. An option is the type of a command's
parameter, such as `as_json: Json = False`. A gateway is one app's stream of changes, on a server that may have several.
A command that calls a gateway has a parameter `options: ConnectionOptions`. Typer gets a parameter for each field of
`ConnectionOptions` in place of it: the options `--url`, `--gateway`, `--token-file` and `--data`. `load_settings` reads
the settings, which options override.

*Claims* are what a client's token says about the client: names with a string or a list of strings. Sync rules decide by
them which rows a client sees. `parse_claims` and `parse_claim_options` parse those on the command line.

The shell's completion of gateway ids and table names reads the local settings. It never calls a gateway and prints no
error, because its output goes into the user's command line.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.config import Config

_RESERVED_CLAIMS = frozenset({"sub", "gw", "role", "exp"})
"""Claims of each token that a command signs; the command's options set them."""

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command's click context: help by `-h` too, and lines of at most 100 characters."""


class ExamplesInHelp:
    """Mixin that writes the examples of a help text on lines of their own. Click would join them to a paragraph."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 click's signature
        """Write the examples, which follow the options: a heading, then each example on a line of its own.

        Args:
            ctx: click's context, which is not used.
            formatter: click's formatter of the help text.
        """
        heading, *lines = [line.strip() for line in (self.epilog or "").splitlines() if line.strip()] or [""]
        if lines:
            formatter.write(f"\n{heading}\n" + "".join(f"  {line}\n" for line in lines))


class CommandWithExamples(ExamplesInHelp, TyperCommand):
    """A command whose help may have examples."""


class GroupWithExamples(ExamplesInHelp, TyperGroup):
    """A group of commands whose help may have examples."""


class _App(typer.Typer):
    """A typer app whose commands may have examples in their help, and a parameter of type `ConnectionOptions`."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        register = super().command(name, cls=CommandWithExamples, **settings)

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            register(_with_single_options(function))
            return function

        return decorate


def command_app(help: str | None = None, epilog: str | None = None) -> typer.Typer:  # noqa: A002 typer's word
    """Return the typer app to which a module adds its commands.

    Args:
        help: the help of a group of commands; None for a single command, which has its own.
        epilog: the group's examples, as `examples` returns them; None for a single command.
    """
    app = _App(
        help=help,
        epilog=epilog,
        cls=GroupWithExamples,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain text: importing rich, typer's default, takes longer than most commands run
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )
    if help is not None:
        app.callback()(lambda: None)  # without a callback, an app with one command would be that command
    return app


def examples(*lines: tuple[str, str]) -> str:
    """Return the examples of a command's help, for `epilog`.

    Args:
        lines: command lines that can be pasted, each with its explanation, which becomes a comment; "" for none.
    """
    formatted = (f"  {line}   # {purpose}" if purpose else f"  {line}" for line, purpose in lines)
    return "\n\n".join(["Examples:", *formatted])


def declared_gateways(config: Config) -> list[str]:
    """Return the ids of the gateways in the settings, `[remote] gateway` included, in alphabetical order."""
    return sorted({*config.gateways, *filter(None, [config.remote.gateway])})


def complete_gateways(incomplete: str) -> list[str]:
    """Complete a gateway id for the shell: return the declared ones that begin with `incomplete`, the word so far."""
    config = _settings_or_none()
    return [] if config is None else [name for name in declared_gateways(config) if name.startswith(incomplete)]


def complete_tables(incomplete: str) -> list[str]:
    """Complete a table's name for the shell: return the tables of the schema files that begin with `incomplete`."""
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
            arguments: further arguments of `lakesync.cli.connection.connect`. One that is named like an option replaces
                the option.

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
    """Parse the value of `--as`: the claims of the client for which a command evaluates sync rules.

    Args:
        text: a JSON object; or `NAME=VALUE,NAME=VALUE`, in which a repeated name makes a list; or `@FILE`, a file with
            one of the two.

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
        typer.BadParameter: a value is not NAME=VALUE, or names a claim that the signing command sets itself.
    """
    claims = _parse_pairs(options or (), "--claim")
    reserved = sorted(_RESERVED_CLAIMS & claims.keys())
    if reserved:
        raise typer.BadParameter(
            f"--claim cannot set {reserved[0]!r}: use --client for 'sub' and --gateway for 'gw'; 'role' is that of "
            "`token create --role`, and 'exp' that of its --hours"
        )
    return claims


def _with_single_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the fields of `ConnectionOptions` as parameters in place of one of that type.

    Typer makes an option of each parameter, by the signature. A function without such a parameter is returned
    unchanged.
    """
    signature = inspect.signature(function, eval_str=True)
    names = [name for name, each in signature.parameters.items() if each.annotation is ConnectionOptions]
    if not names:
        return function
    fields = inspect.signature(ConnectionOptions, eval_str=True).parameters
    parameters = []
    for name, parameter in signature.parameters.items():
        if name in names:
            parameters += [field.replace(kind=inspect.Parameter.KEYWORD_ONLY) for field in fields.values()]
        else:
            parameters.append(parameter)

    @wraps(function)
    def call(**values: Any) -> None:
        options = ConnectionOptions(**{field: values.pop(field) for field in fields})
        function(**values, **{names[0]: options})

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


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
        if name not in claims:
            claims[name] = value
            continue
        earlier = claims[name]
        claims[name] = [earlier, value] if isinstance(earlier, str) else [*earlier, value]
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
