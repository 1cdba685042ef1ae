"""A rebuild replaces the files of a store, or leaves them unchanged if it fails or is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakesync.engine.rebuild import LakePush, rebuild
from lakesync.model.crash_points import VARIABLE
from lakesync.model.errors import ConfigurationError, StagingUnavailableError
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta
from tests.conformance.rebuild_support import Lake, carry, everything, opened, random_history
from tests.forked import run_code


def test_an_existing_store_is_replaced_only_on_request(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    with pytest.raises(ConfigurationError, match="--replace"):
        rebuild(url, clock, Lake())
    with pytest.raises(StagingUnavailableError):
        rebuild(url, clock, Lake(), replace=True)
    engine.close()
    assert rebuild(url, clock, Lake(), replace=True) == []
    engine = opened(url, clock)
    assert engine.gateways() == []
    engine.close()


def test_the_old_store_stays_if_the_new_one_cannot_be_renamed(tmp_path, clock, monkeypatch):
    folder = tmp_path / "store"
    engine = opened(f"sqlite://{folder}", clock)
    random_history(engine, clock)
    gateways = engine.gateways()
    engine.close()
    rename = Path.rename

    def fail_for_the_new_store(path, target):
        if path.name == "store.rebuilding":
            raise OSError("no permission")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_store)
    with pytest.raises(StagingUnavailableError, match="cannot be replaced: no permission"):
        rebuild(f"sqlite://{folder}", clock, Lake(), replace=True)
    engine = opened(f"sqlite://{folder}", clock)
    assert engine.gateways() == gateways
    engine.close()


def test_other_files_in_the_folder_of_a_store_are_not_deleted(tmp_path, clock):
    """A mistyped URL was enough to delete a user's folder."""
    (tmp_path / "documents" / "letters").mkdir(parents=True)
    (letter := tmp_path / "documents" / "letters" / "letter.txt").write_text("Dear Alice")
    mode = letter.parent.parent.stat().st_mode
    with pytest.raises(ConfigurationError, match=r"documents is not empty: add --replace, which sets it aside"):
        rebuild(f"sqlite://{tmp_path}/documents", clock, Lake())
    assert (letter.read_text(), letter.parent.parent.stat().st_mode) == ("Dear Alice", mode)
    rebuild(f"sqlite://{tmp_path}/documents", clock, Lake(), replace=True)
    (aside,) = tmp_path.glob("documents.replaced-*")
    assert (aside / "letters" / "letter.txt").read_text() == "Dear Alice"


def test_a_failed_rebuild_leaves_the_store_unchanged(url, clock):
    engine = opened(url, clock)
    random_history(engine, clock)
    lake = Lake()
    carry(lake, engine)
    expected = everything(engine, "red")
    engine.close()

    class Breaks(Lake):
        def pushes(self, gateway):
            yield from lake.entries[gateway][:1]
            raise ConnectionError("the lake is gone")

    broken = Breaks()
    broken.entries, broken.configs = lake.entries, lake.configs
    with pytest.raises(ConnectionError):
        rebuild(url, clock, broken, replace=True)
    engine = opened(url, clock)
    assert everything(engine, "red") == expected
    engine.close()


SCRIPT = """
import sys
from lakesync.engine.rebuild import LakePush, rebuild
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta
from tests.conformance.rebuild_support import Lake

lake = Lake()
lake.entries["g"] = [LakePush(1_700_000_000_000 << 16, "a", [make_delta("a", 1, "r", x=1)])]
rebuild(sys.argv[1], ManualClock(1_700_000_000_500), lake, replace=True)
"""


@pytest.mark.parametrize("crash_at", ["rebuild.filled", "rebuild.set_aside"])
def test_a_killed_rebuild_does_not_look_like_an_empty_store(tmp_path, clock, crash_at):
    url = f"sqlite://{tmp_path / 'staging'}"
    engine = opened(url, clock)
    random_history(engine, clock)
    engine.close()
    assert run_code(SCRIPT, url, **{VARIABLE: crash_at}) == -9
    with pytest.raises(StagingUnavailableError, match="rebuild"):
        opened(url, clock)
    assert run_code(SCRIPT, url) == 0
    engine = opened(url, clock)
    assert everything(engine, "red") == {"r": {"x": 1}}
    engine.close()


def test_a_missing_store_is_created_from_the_lake(url):
    clock = ManualClock(1_700_000_000_000)
    lake = Lake()
    lake.entries["g"] = [LakePush(clock.now_ms << 16, "a", [make_delta("a", 1, "r", x=1)])]
    (done,) = rebuild(url, clock, lake)
    assert (done.deltas, done.schemas, done.rules) == (1, 0, False)
    engine = opened(url, clock)
    assert everything(engine, "red") == {"r": {"x": 1}}
    engine.close()
