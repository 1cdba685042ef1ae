"""Lazy commands: a command's module is imported when the command runs, so that `lakesync --help` starts fast.

Also the plain-text help of all commands, and the place where exceptions become exit codes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from lakesync.cli import exit_codes, streams

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class PlainHelp:
    """Help as plain text: importing rich takes longer than most commands run."""

    epilog: str | None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 click's signature
        """Write each example on a line of its own."""
        heading, *lines = [line.strip() for line in (self.epilog or "").splitlines() if line.strip()] or [""]
        if lines:
            formatter.write(f"\n{heading}\n" + "".join(f"  {line}\n" for line in lines))


class PlainCommand(PlainHelp, TyperCommand):
    """A command with plain help."""


class PlainGroup(PlainHelp, TyperGroup):
    """A group of commands with plain help."""


class _App(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, cls=PlainCommand, **settings)


def command_app(help: str | None = None, epilog: str | None = None) -> typer.Typer:  # noqa: A002 typer's word
    """Return the app for the commands of one module.

    Args:
        help: the help of the group; None for a single command, which has its own.
        epilog: examples of the group.

    Returns:
        An app. With one command and no callback it is that command, else a group.
    """
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
    """Return the examples of a command's help.

    Args:
        lines: command lines that can be pasted, each with its explanation, which becomes a comment; "" for none.
    """
    shown = (f"  {line}   # {purpose}" if purpose else f"  {line}" for line, purpose in lines)
    return "\n\n".join(["Examples:", *shown])


class LazyCommand(NamedTuple):
    """Where a command is, and how `lakesync --help` lists it."""

    module: str
    """Its module, below `lakesync.cli`."""
    panel: str
    """Heading under which it is listed."""
    summary: str
    """The first line of its help."""
    attribute: str = "app"
    """The app in its module."""


class UnloadedCommand(TyperCommand):
    """Represents a command in lists and completions until it runs."""

    def __init__(self, name: str, entry: LazyCommand) -> None:
        """Create a command that only has a name and a summary.

        Args:
            name: name of the command.
            entry: where the command is.
        """
        super().__init__(
            name=name, callback=None, help=entry.summary, short_help=entry.summary, rich_help_panel=entry.panel
        )
        self._entry = entry

    def load(self) -> Any:
        """Import and return the command."""
        app = getattr(import_module(f"lakesync.cli.{self._entry.module}"), self._entry.attribute)
        command = typer.main.get_command(app)
        command.name = self.name
        return command


class LazyGroup(PlainGroup):
    """A group of lazy commands. All exceptions of commands become exit codes here."""

    entries: dict[str, LazyCommand] = {}  # noqa: RUF012 set by the subclass

    def __init__(self, **attributes: Any) -> None:
        """Add an unloaded command for each entry. The arguments are typer's."""
        super().__init__(**attributes)
        for name, entry in self.entries.items():
            self.add_command(UnloadedCommand(name, entry), name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 click's signature
        """Return the names in the order of `entries`."""
        return list(self.commands)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands by panel."""
        TyperCommand.format_options(cast("TyperCommand", self), ctx, formatter)
        width = max(map(len, self.entries), default=0)
        for panel in dict.fromkeys(entry.panel for entry in self.entries.values()):
            with formatter.section(panel):
                entries = [(name, entry) for name, entry in self.entries.items() if entry.panel == panel]
                rows = [(f"{name:<{width}}", entry.summary) for name, entry in entries]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the imported command and the remaining arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, UnloadedCommand):
            command = command.load()
            self.add_command(command, name)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An expected exception is reported in a sentence and becomes an exit code."""
        as_json = "--json" in (*ctx._protected_args, *ctx.args)  # noqa: SLF001 click's own
        try:
            try:
                return super().invoke(ctx)
            finally:
                streams.flush()
        except Exception as error:
            usage = getattr(error, "format_message", None)  # typer's usage errors have it in all versions
            if usage is not None and not as_json:
                raise  # typer explains how to use a command
            code = (
                exit_codes.report_error(error, as_json=as_json) if usage is None else exit_codes.report_usage(usage())
            )
            if code is None:
                raise
            raise typer.Exit(code) from error
