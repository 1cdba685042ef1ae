"""Completion offers commands, options and known values in bash, zsh and fish."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.forked import Forked

ASKED = {
    "bash": lambda line: {
        "_LAKESYNC_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    },
    "zsh": lambda line: {"_LAKESYNC_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line},
    "fish": lambda line: {
        "_LAKESYNC_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    },
}
LINES = {
    "lakesync st": {"status", "staging"},
    "lakesync rules va": {"validate"},
    "lakesync push --ta": {"--table"},
    "lakesync status --gateway ": {"shop"},
    "lakesync explain ": {"todos"},
    "lakesync push x.csv --table t": {"todos"},
    "lakesync token create --role a": {"admin"},
    "lakesync doctor --only j": {"java", "jars"},
    "lakesync config show gateway.p": {"gateway.port"},
    "lakesync dlq list --kind ": {"value", "work", "destination"},
}


def complete() -> None:
    """Run the command line, which completes a line if the environment has one."""
    from lakesync.cli import main

    sys.argv = ["lakesync"]
    main()


def completed(shell: str, line: str) -> str:
    """The output and errors of a completion in this folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LAKESYNC_", "_TYPER"))}
    log = Path.cwd() / ".completed"
    Forked(complete, environment={**kept, **ASKED[shell](line)}, log=log).wait(60)
    output = log.read_text()
    log.unlink()
    return output


@pytest.mark.parametrize("line", LINES)
def test_bash_completes_commands_options_and_values(run, line):
    run("init", "--gateway", "shop")
    assert set(completed("bash", line).split()) == LINES[line]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_complete_the_same(run, shell):
    run("init", "--gateway", "shop")
    for line in ("lakesync st", "lakesync explain "):
        result = completed(shell, line)
        assert all(each in result for each in LINES[line])


def test_invalid_settings_complete_nothing_without_an_error(run):
    Path("lakesync.toml").write_text("[gateway\n")
    assert completed("bash", "lakesync status --gateway ").strip() == ""
    assert completed("bash", "lakesync config show ").strip() == ""
