"""`lakesync doctor`: everything that a LakeSync needs, looked at, each thing with what to do where it is not right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import output
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings

if TYPE_CHECKING:
    from rich.text import Text

    from lakesync.cli.local.doctor_checks import Check

app = command_app()


def _completed_checks(incomplete: str) -> list[str]:
    from lakesync.cli.local.doctor_checks import CHECKS

    return [name for name in CHECKS if name.startswith(incomplete)]


_STYLES = {"ok": "green", "off": "dim", "warning": "yellow", "problem": "bold red"}


@app.command(
    epilog=examples(
        ("lakesync doctor", "before the first `lakesync up`, and when something is odd"),
        ("lakesync doctor --json | jq 'select(.state == \"problem\")'", "for a script"),
    )
)
def doctor(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Only this check; may be repeated.", autocompletion=_completed_checks),
    ] = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Look whether everything that a LakeSync needs is there, and say what to do.

    Exit code 1: something is a problem. What does not run is off, which is none.
    """
    from lakesync.cli.local.doctor_checks import CHECKS

    unknown = set(only or ()) - set(CHECKS)
    if unknown:
        raise typer.BadParameter(f"--only {unknown.pop()!r}: there are {', '.join(CHECKS)}")
    with output.working("looking"):
        found = list(_found(data, {name: CHECKS[name] for name in CHECKS if not only or name in only}))
    found.sort(key=lambda each: each.state != "problem")
    if as_json:
        for each in found:
            output.record({"name": each.name, **each._asdict()})
    else:
        output.table(("check", "state", "found"), ([output.cell(each.name), *_told(each)] for each in found))
    if any(each.state == "problem" for each in found):
        raise typer.Exit(ExitCode.FAILED)


def _found(data: Path | None, checks: dict[str, Callable[..., Check]]) -> Iterator[Check]:
    """Every check's finding; without a configuration that can be read there is one finding alone."""
    from lakesync.cli.local.doctor_checks import Check
    from lakesync.model.errors import ConfigurationError, LakeSyncError

    try:
        config = settings(data)
    except ConfigurationError as error:
        remedy = "mend lakesync.toml or the variable; `lakesync init` writes a good one"
        yield Check("problem", str(error), remedy, name="config")
        return
    for name, look in checks.items():
        try:
            yield look(config)._replace(name=name)
        except LakeSyncError as error:
            yield Check("problem", str(error), name=name)


def _told(check: Check) -> tuple[Text, Text]:
    from rich.text import Text

    found = Text(check.found)
    if check.remedy and check.state != "ok":
        found.append(f"\n→ {check.remedy}")
    return Text(check.state, style=_STYLES[check.state]), found
