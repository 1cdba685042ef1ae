"""The output of `lakesync up`: progress on stderr, and with `--json` a JSON line for each change on stdout."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from lakesync.cli.up.supervisor import Change, State
from lakesync.config import Config


class Display:
    """Prints the progress of services."""

    def __init__(self, *, json_events: bool) -> None:
        """Choose the form of the output.

        Args:
            json_events: also print JSON lines on stdout.
        """
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._json = json_events

    def note(self, text: str) -> None:
        """Print a message that does not concern a single service."""
        self._console.print(f"[dim]{text}[/]")
        self._event(event="note", text=text)

    def working(self, text: str) -> AbstractContextManager[object]:
        """Return a context manager that shows a spinner with a text."""
        return self._console.status(text)

    def change(self, change: Change) -> None:
        """Print a service's new state."""
        name = f"{change.service.name:<12}"
        match change.state:
            case State.READY if change.service.once:
                self._console.print(f"{name} [green]done[/]  after {change.seconds:.1f} s")
            case State.READY:
                self._console.print(f"{name} [green]ready[/] after {change.seconds:.1f} s  {change.service.where}")
            case State.STARTING:
                self._console.print(f"{name} [dim]starting; log: {change.log}[/]")
            case State.WAITING if change.reason:
                self._console.print(f"{name} [yellow]{change.reason}; restarting[/]; log: {change.log}")
            case _:
                self._console.print(f"{name} [dim]{change.state.value}[/]")
        self._event(
            event=change.state.value,
            service=change.service.name,
            pid=change.pid,
            where=change.service.where,
            seconds=round(change.seconds, 3),
            reason=change.reason,
        )

    def ready(self, config: Config, folder: Path, *, with_gateway: bool) -> None:
        """Print the addresses of all services; called when all are ready.

        Args:
            config: the settings, with every address chosen.
            folder: the data folder.
            with_gateway: whether the gateway is one of the services.
        """
        title = "LakeSync is up." if with_gateway else "The pipeline is up."
        self._console.print(
            f"\n[bold green]{title}[/]  gateway [bold]{config.gateway.url}[/]  "
            f"pipeline [bold]{config.dagster.url}[/]"
            + (f"  Spark [bold]{config.spark.ui_url}[/]" if config.spark.ui_url else "")
            + (
                "\n[dim]run `lakesync console --open` to see clients, and why one lacks a row[/]"
                if with_gateway
                else ""
            )
            + f"\n[dim]data and logs: {folder}; Ctrl-C stops everything[/]\n"
        )
        self._event(
            event="up",
            gateway=config.gateway.url,
            dagster=config.dagster.url,
            spark_ui=config.spark.ui_url,
            data_dir=str(folder),
        )

    def _event(self, **fields: object) -> None:
        if self._json:
            print(json.dumps(fields), file=sys.stdout, flush=True)
