"""The examples of docs/http-api.md run unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.gateway_support import DEADLINE, SECRET

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE.partition("## With curl")[2].partition("\n## ")[0], re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="needs curl and bash")
def test_the_examples_work(served, tmp_path):
    lakesync = f'lakesync() {{ "{sys.executable}" -c "from lakesync.cli import main; main()" "$@"; }}\n'
    script = "set -euo pipefail\n" + lakesync + "\necho; ".join(["", *BLOCKS])
    environment = {**os.environ, "URL": served.url, "LAKESYNC_JWT_SECRET": SECRET, "LAKESYNC_CONFIG": ""}
    ran = subprocess.run(
        ["bash", "-c", script],
        check=False,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = ran.stdout
    assert '"accepted":1' in answers
    assert answers.count('"op":"INSERT","table":"todos","rowId":"t1"') == 3
    assert "no checkpoint yet" in answers
    assert '"verdict":"hidden"' in answers
    assert "which is not eq 'blue', the client's claim 'team'" in answers
    assert "lakesync_unflushed_deltas" in answers
    assert '"openapi":"3.1.0"' in answers
