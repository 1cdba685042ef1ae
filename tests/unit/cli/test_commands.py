"""All commands have the same options and the same form of help, and listing them imports none of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lakesync.cli.app import COMMANDS, LazyCommand, app


def commands():
    """Every command, with the words of its name."""
    group: Any = typer.main.get_command(app)
    for name, unloaded in group.commands.items():
        assert isinstance(unloaded, LazyCommand)
        command = unloaded.load()
        yield (name,), command
        for inner, each in getattr(command, "commands", {}).items():
            yield (name, inner), each


ALL = dict(commands())


def _summary(words):
    return (ALL[words].help or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")


LEAVES = {words: command for words, command in ALL.items() if not hasattr(command, "commands")}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listed_summary_is_that_of_the_command(name):
    assert COMMANDS[name].summary == _summary((name,))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_summary_is_an_imperative_sentence_of_at_most_72_characters(words):
    summary = _summary(words)
    assert len(summary) <= 72
    assert summary.endswith(".")
    assert not summary.split()[0].endswith("s")


@pytest.mark.parametrize("words", [words for words in ALL if words not in LEAVES], ids=" ".join)
def test_a_group_lists_whole_summaries(words, run):
    listed = run(*words, "--help").stdout.partition("Commands:")[2]
    assert listed
    assert "...\n" not in listed


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_help_and_an_example_of_itself(words):
    command = LEAVES[words]
    assert command.help
    assert f"lakesync {' '.join(words)}" in (command.epilog or "")


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_common_options_have_the_same_names_everywhere(words):
    options = {option for parameter in LEAVES[words].params for option in parameter.opts}
    serves = words == ("gateway",)
    assert "--json" in options or serves
    assert not options & {"--token", "--password", "--secret"}
    assert ("--token-file" in options) == ("--gateway" in options and "--url" in options)


def test_help_imports_no_command_and_no_heavy_package():
    code = "import sys\nsys.argv = ['lakesync', '--help']\nfrom lakesync.cli import main\n"
    code += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "pydantic_settings", "rich", "msgspec", "requests", "jwt", "pyarrow", "lakesync.config"}
    assert not heavy & set(ran.stderr.split())
    for name in COMMANDS:
        assert f"\n  {name} " in ran.stdout


def test_a_misspelt_command_exits_with_2_and_suggests_the_right_one(run):
    result = run("statsu")
    assert result.exit_code == 2
    assert "status" in result.output


@pytest.mark.parametrize(("typed", "offered"), [("lakesync chec", "checkpoint"), ("lakesync rules d", "diff")])
def test_command_names_are_completed(typed, offered, run):
    words = {"_LAKESYNC_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    result = CliRunner().invoke(app, [], prog_name="lakesync", env=words)
    assert offered in result.stdout.split()
