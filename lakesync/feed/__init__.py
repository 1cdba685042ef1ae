"""What a client lacks: entries written with every commit, pages read from them.

`apply` is the writing side, `pull` the reading one; `positions` knows what a cursor means, `possession` what a client
at a position holds of a row, `render` spells it as deltas.
"""

from lakesync.feed.apply import Applied, Sender, apply
from lakesync.feed.pull import MAX_PAGE_BYTES, PulledPage, pull_page
from lakesync.feed.reindex import reindex_some

__all__ = ["MAX_PAGE_BYTES", "Applied", "PulledPage", "Sender", "apply", "pull_page", "reindex_some"]
