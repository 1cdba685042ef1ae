"""The code of README and docs/client.md, run as the pages describe; `scripts/newcomer` installs the wheel first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.gateway_support import Served, sign

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "client.md"


def test_the_app_of_the_readme_syncs_and_prints_its_row(served: Served, tmp_path: Path) -> None:
    code = re.search(r"`app\.py`.*?```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "app.py").write_text(code[1].replace("http://127.0.0.1:8787", served.url))
    environment = {**os.environ, "LAKESYNC_TOKEN": sign("alice", "shop")}
    command = [sys.executable, "app.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[{'title': 'Buy oat milk', 'owner': 'alice'}]\n", done.stdout + done.stderr
    [delta] = served.client("bob", "shop").pull().json()["deltas"]
    assert delta["table"] == "todos"


def test_the_two_clients_of_the_page_print_the_documented_output(served: Served, tmp_path: Path) -> None:
    page = PAGE.read_text()
    code = re.search(r"`notes\.py`:\n```python\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"^\$ LAKESYNC_TOKEN=… python notes\.py (.*)\n(.*)$", page, re.MULTILINE)
    assert code is not None
    assert len(commands) == 3
    (tmp_path / "notes.py").write_text(code[1])
    for arguments, expected in commands:
        name = arguments.split(".")[0]
        environment = {**os.environ, "LAKESYNC_URL": served.url, "LAKESYNC_TOKEN": sign(name, "notes")}
        command = [sys.executable, "notes.py", *arguments.split()]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.rstrip("\n") == expected, done.stdout + done.stderr
