"""`lakesync doctor`: checks everything that LakeSync needs, and suggests a remedy for each problem.

It runs the checks of `doctor_checks` and prints their results. Its exit code says whether a check found a problem.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import output
from lakesync.cli.commands import Data, Json, command_app, examples, load_settings
from lakesync.cli.exit_codes import ExitCode
from lakesync.model.errors import ConfigurationError, LakeSyncError

if TYPE_CHECKING:
    from rich.text import Text

    from lakesync.cli.local.doctor_machine import CheckResult

doctor_app = command_app()


def _complete_checks(incomplete: str) -> list[str]:
    """Return the checks whose name begins with a text, for the shell's completion."""
    from lakesync.cli.local.doctor_checks import CHECKS

    return [name for name in CHECKS if name.startswith(incomplete)]


_STYLES = {"ok": "green", "off": "dim", "warning": "yellow", "problem": "bold red"}
"""The style of each state."""


@doctor_app.command(
    epilog=examples(
        ("lakesync doctor", "before the first `lakesync up`, and if something fails"),
        ("lakesync doctor --json | jq 'select(.state == \"problem\")'", "only problems, for a script"),
    )
)
def doctor(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run only this check; may be repeated.", autocompletion=_complete_checks),
    ] = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Check everything that LakeSync needs and suggest remedies.

    Exits with 1 if any check fails. A service that is not running is reported as off; that is not a failure.
    """
    from lakesync.cli.local.doctor_checks import CHECKS

    unknown = set(only or ()) - set(CHECKS)
    if unknown:
        raise typer.BadParameter(f"--only {unknown.pop()!r} is not a check; known checks: {', '.join(CHECKS)}")
    with output.spinner("checking"):
        results = _results(data, only or list(CHECKS))
    problems_first = sorted(results.items(), key=lambda item: item[1].state != "problem")
    if as_json:
        for name, result in problems_first:
            output.print_json({"name": name, **result._asdict()})
    else:
        rows = ([output.cell(name), *_state_and_finding(result)] for name, result in problems_first)
        output.print_table(("check", "state", "found"), rows)
    if any(result.state == "problem" for result in results.values()):
        raise typer.Exit(ExitCode.FAILED)


def _results(data: Path | None, names: list[str]) -> dict[str, CheckResult]:
    """Run the checks with these names, and return their results; if a setting is invalid, one result about that."""
    from lakesync.cli.local.doctor_checks import CHECKS
    from lakesync.cli.local.doctor_machine import CheckResult

    try:
        config = load_settings(data)
    except ConfigurationError as error:
        remedy = "correct lakesync.toml or the variable; `lakesync init` writes a valid file"
        return {"config": CheckResult("problem", str(error), remedy)}
    results = {}
    for name, check in CHECKS.items():
        if name in names:
            try:
                results[name] = check(config)
            except LakeSyncError as error:
                results[name] = CheckResult("problem", str(error))
    return results


def _state_and_finding(result: CheckResult) -> tuple[Text, Text]:
    """Return two cells of a result's row: the state, and what was found with the remedy."""
    from rich.text import Text

    found = Text(result.found)
    if result.remedy and result.state != "ok":
        found.append(f"\n→ {result.remedy}")
    return Text(result.state, style=_STYLES[result.state]), found
