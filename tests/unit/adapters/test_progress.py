"""How far something is, in a mark or in a file."""

import msgspec
import pytest

from lakesync.adapters.flowing import FlowMark, Sieve
from lakesync.adapters.migrate import Progress, Scope
from lakesync.adapters.progress import ProgressKept, progress_in
from lakesync.model.errors import ConfigurationError, IntegrityError


def test_a_file_is_replaced_whole_and_forgotten(tmp_path):
    kept = ProgressKept(tmp_path / "folder" / "f.json", FlowMark)
    assert kept.read() is None
    for deltas in (1, 2):
        kept.write(FlowMark(Sieve(tables=("t",)), deltas=deltas))
    assert kept.read() == FlowMark(Sieve(tables=("t",)), deltas=2)
    assert [path.name for path in kept.path.parent.iterdir()] == ["f.json"]
    kept.remove()
    kept.remove()
    assert kept.read() is None


def test_what_is_of_another_kind_is_named(tmp_path):
    path = tmp_path / "f.json"
    path.write_bytes(b'{"sieve": 1}')
    with pytest.raises(ConfigurationError, match=r"f\.json is no progress .* remove it"):
        ProgressKept(path, FlowMark).read()
    assert progress_in(None, Progress, "m") is None
    told = msgspec.json.encode(Progress(Scope(gateway="g"), deltas=7)).decode()
    assert progress_in(told, Progress, "m") == Progress(Scope(gateway="g"), deltas=7)
    with pytest.raises(IntegrityError, match=r"the mark 'm' .* another name"):
        progress_in(told, FlowMark, "m")
