"""The journal of a SQLite store: its file and its memory agree."""

from contextlib import closing

import pytest

from lakesync.staging.sqlite.journal import Journal


def test_a_commit_stays_in_memory_if_the_work_during_it_fails(tmp_path):
    def fail(_is_committed):
        raise RuntimeError("no more memory")

    with closing(Journal(tmp_path, lambda: 5)) as journal:
        journal.begin()
        journal.ensure_gateway("shop")
        with pytest.raises(RuntimeError, match="no more memory"):
            journal.commit(fail)
        journal.rollback()
        assert list(journal.heads) == [head.gateway for head in journal.stored_heads()] == ["shop"]
