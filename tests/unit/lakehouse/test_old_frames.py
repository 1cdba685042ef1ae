"""Frames are kept while clients may read them: the newest checkpoint's, and for a day those of the one before."""

import os
from types import SimpleNamespace

import pytest

from lakehouse.checkpoints import publication
from lakehouse.checkpoints.publication import delete_superseded_files, make_checkpoints
from lakesync.model.schema import TableSchema
from lakesync.staging.records import Checkpoint

HOUR_MS = 3_600_000
NOW = 1_800_000_000_000


def frames(folder, epoch, arrival, hours_ago):
    file = folder / "g" / f"{epoch}-{arrival}" / "t" / "00000.frames"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"frames")
    seconds = (NOW - hours_ago * HOUR_MS) / 1000
    os.utime(file, (seconds, seconds))


def left(folder):
    return sorted(path.name for path in (folder / "g").iterdir())


def test_frames_superseded_a_day_ago_are_deleted(tmp_path):
    for epoch, arrival, hours_ago in [(1, 900, 200), (2, 100, 100), (2, 200, 30), (2, 300, 5), (2, 400, 0)]:
        frames(tmp_path, epoch, arrival, hours_ago)
    (tmp_path / "g" / "notes").mkdir()
    newest = Checkpoint("g", 2, 300, 0, (), 0)
    assert delete_superseded_files(tmp_path.as_uri(), newest, NOW) == ["1-900", "2-100"]
    assert left(tmp_path) == ["2-200", "2-300", "2-400", "notes"], "2-200 was sent to clients until five hours ago"
    assert delete_superseded_files(tmp_path.as_uri(), newest, NOW + 20 * HOUR_MS) == ["2-200"]
    assert delete_superseded_files(tmp_path.as_uri(), newest, NOW + 999 * HOUR_MS) == []


def test_no_frames_exist_before_the_first_checkpoint(tmp_path):
    assert delete_superseded_files(tmp_path.as_uri(), Checkpoint("g", 1, 1, 0, (), 0), NOW) == []


def test_a_gateway_whose_old_files_cannot_be_deleted_does_not_stop_the_others(monkeypatch):
    def refuse(_uri, newest, _now):
        raise OSError(f"DELETE refused for {newest.gateway}")

    monkeypatch.setattr(publication, "registered", lambda *_: None)
    monkeypatch.setattr(publication, "_tables", lambda *_: set())
    monkeypatch.setattr(publication, "make_checkpoint", lambda _spark, _store, cut_point, *_, **_options: cut_point)
    monkeypatch.setattr(publication, "delete_superseded_files", refuse)
    cut_points = {gateway: SimpleNamespace(gateway=gateway, arrival=5, rules_version=1) for gateway in "ab"}
    run_state = SimpleNamespace(
        flushed=lambda: cut_points,
        cut_points=lambda: cut_points,
        names_of=lambda _: None,
        checkpoint_obstacle=lambda *_: None,
    )
    config = SimpleNamespace(namespaces=SimpleNamespace(own={}), maintenance=None, contracts={})
    failed = []
    made = make_checkpoints(
        None, None, run_state, config, "file:///x", on_failed=lambda gateway, _: failed.append(gateway)
    )
    assert [each.gateway for each in made] == failed == ["a", "b"]


@pytest.mark.parametrize(("with_faulty_history", "is_merged"), [({"other"}, True), ({"a"}, False), ({None}, False)])
def test_tables_without_a_schema_are_merged_unless_the_history_has_faults(monkeypatch, with_faulty_history, is_merged):
    merged, failed = [], []
    monkeypatch.setattr(publication, "registered", lambda *_: None)
    monkeypatch.setattr(publication, "_tables", lambda *_: {"notes"})
    monkeypatch.setattr(publication, "_schema", lambda *_: TableSchema("notes", columns=()))
    monkeypatch.setattr(publication, "merge_tables", lambda *arguments, **_: merged.append(arguments))
    cut_points = {"a": SimpleNamespace(gateway="a", arrival=5, rules_version=1)}
    run_state = SimpleNamespace(
        flushed=lambda: cut_points,
        cut_points=lambda: cut_points,
        names_of=lambda _: None,
        checkpoint_obstacle=lambda *_: "a check failed",
        gateways_with_faulty_history=with_faulty_history,
    )
    config = SimpleNamespace(namespaces=SimpleNamespace(own={}), contracts={})
    made = make_checkpoints(None, None, run_state, config, "", on_failed=lambda _, error: failed.append(str(error)))
    assert (made, failed, bool(merged)) == ([], ["a check failed"], is_merged)
