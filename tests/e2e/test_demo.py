"""The demo's smallest scenario, with every process of the system."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_one_day_of_flights_agrees_with_the_truth_despite_kills_repeats_and_a_rebuild(tmp_path):
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.flights",
            "--days",
            "1",
            "--prove",
            "--json",
            "--data",
            str(tmp_path / "demo"),
        ],
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["ok"], run.stderr[-5000:]
    assert run.returncode == 0
    assert (report["clients"], report["mismatches"], report["asof_mismatches"]) == (19, 0, 0)
    assert report["crossed"] >= 0.05 * report["cells"]
    assert any(flush["requested_by"] == "flush_sensor" for flush in report["runs"])
