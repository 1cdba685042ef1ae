"""Opening the lake's history for `lakesync staging rebuild`."""

import pytest

from lakesync import config
from lakesync.analysis.catalogue import LakeReader
from lakesync.cli.local import lake_history
from lakesync.cli.local.lake_history import LakeHistory
from lakesync.model.errors import LakeUnavailableError


def test_a_lake_that_cannot_be_read_is_closed(monkeypatch, tmp_path):
    closed, close = [], LakeReader.__exit__

    def fail(_):
        raise OSError("the disk is broken")

    def note(reader, *error):
        closed.append(reader)
        close(reader, *error)

    monkeypatch.setattr(LakeReader, "__exit__", note)
    settings = config.load({"data_dir": tmp_path})
    with pytest.raises(LakeUnavailableError, match=r"has no table lakesync\.deltas"):
        LakeHistory(settings)
    monkeypatch.setattr(lake_history, "may_have_catalogue", lambda _: True)
    monkeypatch.setattr(LakeReader, "deltas", property(fail))
    with pytest.raises(OSError, match="broken"):
        LakeHistory(settings)
    assert len(closed) == 2
