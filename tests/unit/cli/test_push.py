"""What is pushed is what the file says, and what a gateway answers is told whatever it names."""

from __future__ import annotations

import gc
import json
import sys

import pytest

from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.remote.push import Refusals
from lakesync.model.errors import Rejection

UNKNOWN = Rejection("ffff", "FORBIDDEN", "no")


@pytest.mark.parametrize("identity", ['{"a": 1}', "[1]", "true", "1.5"])
def test_an_id_is_text_or_a_whole_number(run, identity):
    told = run(
        "push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin=f'{{"row_id": {identity}}}'
    )
    assert told.exit_code == ExitCode.INVALID
    assert "row 1 has the id" in told.stderr


def test_a_row_without_its_id_says_what_it_has(run):
    told = run(
        "push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin='{"key": 1, "title": "a"}'
    )
    assert told.exit_code == ExitCode.INVALID
    assert "it has 'key', 'title'" in told.stderr


def test_a_file_whose_rows_cannot_be_sent_is_let_go_at_once(run, monkeypatch):
    gc.collect()  # what other tests left
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    run("push", "-", "-t", "todos", "-g", "shop", "--url", "http://127.0.0.1:1", stdin='{"key": 1}')
    gc.collect()
    assert lost == []


def test_a_refusal_of_what_was_not_sent_is_told(capsys):
    Refusals("ann", as_json=True).tell([], [UNKNOWN])
    assert json.loads(capsys.readouterr().err)["refused"] == {"deltaId": "ffff", "code": "FORBIDDEN", "message": "no"}
    Refusals("ann", as_json=False).tell([], [UNKNOWN])
    assert "refused a row that was not sent: FORBIDDEN: no (delta ffff)" in capsys.readouterr().err
