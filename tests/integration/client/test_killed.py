"""An app that writes with plain SQL is killed with its gateway at any time: nothing is lost or applied twice."""

from __future__ import annotations

from pathlib import Path

from tests.integration.client.client_storm import play, play_remaking


def test_a_killed_app_loses_no_write_and_repeats_none(tmp_path: Path) -> None:
    found = play(tmp_path, kills=5, seed=7)
    assert (found["kills"], found["lost"], found["twice"]) == (5, 0, 0)


def test_a_killed_app_that_recreates_its_table_loses_and_deletes_nothing(tmp_path: Path) -> None:
    found = play_remaking(tmp_path, kills=5, seed=2)
    assert found["remade"] > 5
    assert (found["lost"], found["spurious_deletes"], found["invented"], found["twice"]) == (0, 0, 0, 0)
