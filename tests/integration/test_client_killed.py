"""An app that writes by plain SQL, killed at any moment with its gateway: nothing is lost, nothing is done twice."""

from __future__ import annotations

from pathlib import Path

from tests.integration.client_storm import play


def test_an_app_that_is_killed_at_any_moment_loses_no_write_and_sends_none_twice(tmp_path: Path) -> None:
    found = play(tmp_path, kills=5, seed=7)
    assert (found["kills"], found["lost"], found["twice"]) == (5, 0, 0)
