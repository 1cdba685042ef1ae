"""`command_app` creates the typer app to which a module adds its commands, and `examples` the end of their help.

All commands get the same plain-text help. A command that calls a gateway has a parameter `options: ConnectionOptions`.
Typer gets a parameter for each field of `ConnectionOptions` in place of it: the options `--url`, `--gateway`,
`--token-file` and `--data`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from lakesync.cli.options import ConnectionOptions

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

    @functools.wraps(function)
    def call(**values: Any) -> None:
        options = ConnectionOptions(**{field: values.pop(field) for field in fields})
        function(**values, **{names[0]: options})

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
