"""The gateway's log lines are JSON, whatever a value contains."""

import json
import os

from gateway.__main__ import _render_bytes


def test_a_text_that_is_not_utf8_is_logged():
    name = os.fsdecode(b"caf\xe9.db")
    line = _render_bytes(None, "", {"path": name, "event": "opened"})
    assert json.loads(line)["path"] == name
    assert line.startswith(b'{"event"')
