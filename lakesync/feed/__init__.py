"""The feed: a gateway's rows in the order of their latest change, from which each client is sent the changes it lacks.

`engine` calls these modules. `apply` writes feed entries in the commit of a push, `pull` reads pages from them, and
`reindex` changes them after a change of the sync rules. `positions` computes what a client's cursor means,
`row_presence` whether the client has a row, and `render` the deltas that it is sent. `client_state` changes the scopes
in its stored record, and `client_cursors` the cursors. See `docs/feed.md`.
"""

from lakesync.feed.apply import Sender, apply
from lakesync.feed.pull import MAX_PAGE_BYTES, PulledPage, pull_page
from lakesync.feed.reindex import reindex_some

__all__ = ["MAX_PAGE_BYTES", "PulledPage", "Sender", "apply", "pull_page", "reindex_some"]
