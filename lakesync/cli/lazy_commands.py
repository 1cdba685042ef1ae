"""Commands by name: a command's module is imported when it is named, so that `lakesync --help` imports none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from lakesync.cli import exit_codes, streams

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Plain:
    """Help as plain text: rich takes longer to import than most commands take to run, and draws for terminals alone."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 click's signature
        """Examples as they stand, a line each."""
        heading, *lines = [line.strip() for line in (self.epilog or "").splitlines() if line.strip()] or [""]
        if lines:
            formatter.write(f"\n{heading}\n" + "".join(f"  {line}\n" for line in lines))


class PlainCommand(Plain, TyperCommand):
    """A command."""


class PlainGroup(Plain, TyperGroup):
    """A group."""


class _App(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, cls=PlainCommand, **settings)


def command_app(help: str | None = None, epilog: str | None = None) -> typer.Typer:  # noqa: A002 typer's word
    """An app for one module's commands: alone it is a command; several, or one with a callback, are a group."""
    return _App(
        help=help,
        epilog=epilog,
        cls=PlainGroup,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


def examples(*lines: tuple[str, str]) -> str:
    """Return the examples in a command's help.

    Args:
        lines: command lines that can be pasted, each with its purpose, which becomes a comment; "" for none.
    """
    shown = (f"  {line}   # {purpose}" if purpose else f"  {line}" for line, purpose in lines)
    return "\n\n".join(["Examples:", *shown])


class Named(NamedTuple):
    """A command that is not imported yet."""

    module: str
    """In `lakesync.cli`; its `app` is the command."""
    panel: str
    help: str
    """The first line of its own help."""
    attribute: str = "app"


class Unloaded(TyperCommand):
    """Stands for a command in lists and completions."""

    def __init__(self, name: str, named: Named) -> None:
        super().__init__(name=name, callback=None, help=named.help, short_help=named.help, rich_help_panel=named.panel)
        self._named = named

    def load(self) -> Any:
        """The command itself."""
        app = getattr(import_module(f"lakesync.cli.{self._named.module}"), self._named.attribute)
        command = typer.main.get_command(app)
        command.name = self.name
        return command


class LazyGroup(PlainGroup):
    """A group whose commands are a table of names; the one place where errors become exit codes."""

    table: dict[str, Named] = {}  # noqa: RUF012 set by who derives

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, named in self.table.items():
            self.add_command(Unloaded(name, named), name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 click's signature
        """In the order of the table."""
        return list(self.commands)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options, then the commands by panel."""
        TyperCommand.format_options(cast("TyperCommand", self), ctx, formatter)
        width = max(map(len, self.table), default=0)
        for panel in dict.fromkeys(named.panel for named in self.table.values()):
            with formatter.section(panel):
                rows = [(f"{name:<{width}}", named.help) for name, named in self.table.items() if named.panel == panel]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As a group does, and loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Unloaded):
            command = command.load()
            self.add_command(command, name)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error that was raised on purpose is said in words and ends in its exit code."""
        as_json = "--json" in (*ctx._protected_args, *ctx.args)  # noqa: SLF001 click's own
        try:
            try:
                return super().invoke(ctx)
            finally:
                streams.flush()
        except Exception as error:
            words = getattr(error, "format_message", None)  # typer's own have it, by whatever name it calls them
            if words is not None and not as_json:
                raise  # typer says by itself how to use a command
            code = exit_codes.told(error, as_json=as_json) if words is None else exit_codes.misused(words())
            if code is None:
                raise
            raise typer.Exit(code) from error
