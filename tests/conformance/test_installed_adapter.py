"""A backend from another distribution is found by its scheme, and passes the suite like any other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = ["tests/conformance/test_adapters.py", "tests/conformance/test_adapter_tables.py"]


def test_an_installed_adapter_passes_the_suite(tmp_path):
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--offline",
    ]
    subprocess.run([*install, "--target", tmp_path / "site", ROOT / "examples/sqlite_adapter"], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "LAKESYNC_ADAPTER_UNDER_TEST": "sqlitefile://{folder}/d.db",
    }
    suite = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITE],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert suite.returncode == 0, suite.stdout
    passed = re.search(r"(\d+) passed", suite.stdout)
    assert passed is not None, suite.stdout
    assert int(passed[1]) >= 24, suite.stdout
