"""Tables of the command line on a terminal."""

from __future__ import annotations

import sys

import pytest

from lakesync.cli import output

TIME = "2026-11-28T14:10:18.701Z"


@pytest.fixture
def printed(monkeypatch, capsys):
    """Prints rows on a terminal of 80 columns, and returns the lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # without bold headings

    def lines(*rows):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        output.print_rows(rows, as_json=False)
        return capsys.readouterr().out.splitlines()

    return lines


def test_times_are_not_broken_on_a_narrow_terminal(printed):
    header, row = printed(dict.fromkeys(("first", "second", "third", "fourth"), TIME))
    assert header.split() == ["first", "second", "third", "fourth"]
    assert row.split() == [TIME] * 4


def test_only_long_cells_are_wrapped(printed):
    lines = printed({"time": TIME, "text": "word " * 40, "id": "x" * 40})
    assert len(lines) > 2
    assert TIME in lines[1]
    assert "x" * 40 in lines[1]
    assert max(map(len, lines)) <= 90
    assert " ".join(lines[1:]).count("word") == 40


def test_wide_characters_are_whole(printed):
    rows = printed({"a": "語" * 20, "b": "語" * 20, "c": TIME})
    assert rows[1].split() == ["語" * 20, "語" * 20, TIME]
