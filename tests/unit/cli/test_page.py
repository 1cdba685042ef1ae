"""docs/cli.md names every command, and its examples that need no server can be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli_page import BLOCKS, PAGE
from tests.unit.cli.test_commands import LEAVES


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_page_names_every_command(words):
    assert f"lakesync {' '.join(words)}" in PAGE


def test_the_commands_for_a_new_project_work(run):
    for line in BLOCKS["A new project"]:
        result = run(*shlex.split(line)[1:])
        assert result.exit_code == 0, line + result.output


def test_the_commands_for_tokens_work(run, monkeypatch):
    monkeypatch.setenv("LAKESYNC_JWT_SECRET", "a secret that has thirty-two bytes, or more")
    for line in BLOCKS["Tokens"]:
        result = run(*shlex.split(line)[1:])
        assert result.exit_code == 0, line + result.output
        if " create " in line:
            Path("token.txt").write_text(result.stdout)
        assert '"sub"' not in result.stdout
    assert "ops" in result.stdout
