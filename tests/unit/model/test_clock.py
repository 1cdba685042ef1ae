"""`lakesync.model.hlc.OffsetClock`: the system's time plus an offset from a file."""

import time

import pytest

from lakesync.model import hlc


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(hlc, "_RECHECK_SECONDS", 0)
    return tmp_path / "offset"


def offset(wall):
    return round((wall.now_ms() - time.time() * 1000) / 1000)


def test_without_an_offset_file_the_clock_is_the_systems():
    assert offset(hlc.OffsetClock()) == 0


def test_the_clock_follows_changes_of_the_offset_file(file):
    wall = hlc.OffsetClock(file)
    assert offset(wall) == 0
    file.write_text("86400000\n")
    assert offset(wall) == 86400
    new = file.with_suffix(".new")
    new.write_text("-5000")
    new.replace(file)
    assert offset(wall) == -5


def test_an_unreadable_offset_file_keeps_the_last_offset(file):
    wall = hlc.OffsetClock(file)
    file.write_text("7000")
    assert offset(wall) == 7
    file.write_text("")
    assert offset(wall) == 7
    file.unlink()
    assert offset(wall) == 7
