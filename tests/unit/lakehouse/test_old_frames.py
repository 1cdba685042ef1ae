"""Frames stay while somebody may read them: the newest checkpoint's, and for a day those of the one before."""

import os

from lakehouse.checkpoints.publication import drop_old_frames
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
    assert drop_old_frames(tmp_path.as_uri(), newest, NOW) == ["1-900", "2-100"]
    assert left(tmp_path) == ["2-200", "2-300", "2-400", "notes"], "2-200 was handed out until five hours ago"
    assert drop_old_frames(tmp_path.as_uri(), newest, NOW + 20 * HOUR_MS) == ["2-200"]
    assert drop_old_frames(tmp_path.as_uri(), newest, NOW + 999 * HOUR_MS) == []


def test_no_frames_exist_before_the_first_checkpoint(tmp_path):
    assert drop_old_frames(tmp_path.as_uri(), Checkpoint("g", 1, 1, 0, (), 0), NOW) == []
