"""Progress that is stored in a mark or in a file."""

import pytest

from lakesync.adapters import SqliteAdapter
from lakesync.adapters.transfer.flow_pages import FlowProgress, RowFilter
from lakesync.adapters.transfer.migration import MigrationInFile, MigrationProgress, MigrationScope
from lakesync.adapters.transfer.progress import ProgressInFile, ProgressInMark
from lakesync.model.errors import ConfigurationError, IntegrityError


def test_a_progress_file_is_replaced_atomically(tmp_path):
    kept = ProgressInFile(tmp_path / "folder" / "f.json", FlowProgress)
    assert kept.read() is None
    for deltas in (1, 2):
        kept.write(FlowProgress(RowFilter(tables=("t",)), deltas=deltas))
    assert kept.read() == FlowProgress(RowFilter(tables=("t",)), deltas=2)
    assert [path.name for path in kept.path.parent.iterdir()] == ["f.json"]
    forgotten = MigrationInFile(kept.path)
    forgotten.forget(MigrationScope())
    forgotten.forget(MigrationScope())
    assert kept.read() is None


def test_progress_of_another_kind_is_rejected(tmp_path):
    path = tmp_path / "f.json"
    path.write_bytes(b'{"sieve": 1}')
    with pytest.raises(ConfigurationError, match=r"f\.json does not contain progress .* delete the file"):
        ProgressInFile(path, FlowProgress).read()
    adapter = SqliteAdapter(tmp_path / "marks.db")
    mark = ProgressInMark(adapter, "m", MigrationProgress)
    assert mark.read() is None
    mark.write(MigrationProgress(MigrationScope(gateway="g"), deltas=7))
    assert mark.read() == MigrationProgress(MigrationScope(gateway="g"), deltas=7)
    with pytest.raises(IntegrityError, match=r"the mark 'm' .* another name"):
        ProgressInMark(adapter, "m", FlowProgress).read()
    adapter.close()
