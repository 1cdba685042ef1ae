"""Failures of the demo: of the pipeline's runs, and of the demo itself."""

from __future__ import annotations

import pytest

from examples.flights import __main__ as command
from examples.flights import demo
from examples.flights.pipeline import MAX_FAILURES, Dagster, Run, RunFailedError
from lakesync.cli.dagster_client import DagsterClient


def runs(*statuses):
    return [Run(f"r{n}", "flush", status, None, None, None) for n, status in enumerate(statuses)]


def test_runs_that_all_fail_are_reported_with_the_newest_error(monkeypatch):
    monkeypatch.setattr(DagsterClient, "error_of", lambda _client, run_id: f"no java in {run_id}")
    dagster = Dagster("http://127.0.0.1:1")
    failed = ["FAILURE"] * MAX_FAILURES
    dagster.check(runs(*failed[1:], "SUCCESS", "FAILURE"))
    dagster.check(runs(*failed[1:], "STARTED"))
    with pytest.raises(RunFailedError, match=f"latest {MAX_FAILURES} runs failed; flush, run r1: no java in r1"):
        dagster.check(runs("STARTED", *failed))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_error_is_one_line_and_exit_code_1(options, tmp_path, monkeypatch, capsys):
    def fail(_demo):
        raise RunFailedError("no java [/usr]")

    monkeypatch.setattr(demo.Demo, "run", fail)
    assert command.main([*options, "--data", str(tmp_path)]) == 1
    reported = capsys.readouterr()
    assert "✗ RunFailedError: no java [/usr]" in reported.err
    assert len(reported.err.splitlines()) == 1
    assert len(reported.out.splitlines()) == len(options)
