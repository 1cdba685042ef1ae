"""`lakesync push` sends the rows of a file, and reports every rejection that a gateway may return."""

from __future__ import annotations

import gc
import json
import sys

import pytest

from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.remote.push import Rejections
from lakesync.model.errors import Rejection

UNKNOWN = Rejection("ffff", "FORBIDDEN", "no")


@pytest.mark.parametrize("identity", ['{"a": 1}', "[1]", "true", "1.5"])
def test_a_row_id_must_be_a_string_or_an_integer(run, identity):
    result = run(
        "push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin=f'{{"row_id": {identity}}}'
    )
    assert result.exit_code == ExitCode.INVALID
    assert "row 1 has the id" in result.stderr


def test_a_row_without_an_id_lists_its_fields(run):
    result = run(
        "push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin='{"key": 1, "title": "a"}'
    )
    assert result.exit_code == ExitCode.INVALID
    assert "it has 'key', 'title'" in result.stderr


@pytest.mark.parametrize("row", [r'{"row_id": "\ud800"}', r'{"row_id": "a", "title": "\ud800"}'])
def test_half_of_a_surrogate_pair_is_invalid(run, row):
    result = run("push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin=row)
    assert result.exit_code == ExitCode.INVALID
    assert "delta 1 contains half of a surrogate pair" in result.stderr


def test_the_file_is_closed_if_its_rows_cannot_be_sent(run, monkeypatch):
    gc.collect()  # free the garbage of other tests
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    run("push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin='{"key": 1}')
    gc.collect()
    assert lost == []


def test_a_rejection_of_a_delta_that_was_not_sent_is_reported(capsys):
    Rejections("ann", as_json=True).report([], [UNKNOWN])
    assert json.loads(capsys.readouterr().err)["rejected"] == {"deltaId": "ffff", "code": "FORBIDDEN", "message": "no"}
    Rejections("ann", as_json=False).report([], [UNKNOWN])
    assert "rejected a row that was not sent: FORBIDDEN: no (delta ffff)" in capsys.readouterr().err
