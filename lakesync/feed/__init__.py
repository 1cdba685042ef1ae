"""The feed: which changes a client lacks. Pushes write feed entries with every commit, pulls read pages from them.

`apply` writes, `pull` reads. `positions` computes what a cursor means, `row_presence` what a client at a position has
of a row, `render` turns that into deltas, `client_state` keeps the client's record. See `docs/feed.md`.
"""

from lakesync.feed.apply import Sender, apply
from lakesync.feed.pull import MAX_PAGE_BYTES, PulledPage, pull_page
from lakesync.feed.reindex import reindex_some

__all__ = ["MAX_PAGE_BYTES", "PulledPage", "Sender", "apply", "pull_page", "reindex_some"]
