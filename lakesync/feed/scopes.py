"""Scopes: the periods in which a client was sent pages under the same claims and sync rules.

A client's *record*, what the gateway stores about it, contains its scopes. `feed.client_state` changes them;
`feed.positions`, `feed.client_cursors` and the engine ask these functions which scope a cursor belongs to.
`engine.active_rules` computes an `Access`: what a client may see now.

- Sync rules put rows into *buckets*. A *bucket key* names a bucket with the claims (fields of a client's token) that
  may see it.
- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit, a multiple of
  `ARRIVAL_STEP`. The *feed position* of a row is the arrival of its latest change.
- A *page* is one response with changes. A *cursor* is the number that a client sends to continue after the last page
  that it has. At a *complete cursor*, the client has exactly what it could see then. It is an arrival, except for the
  first one of a later scope, which lies between two arrivals.
- A *re-index* computes the bucket keys of all rows again, in the background, after the rules changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lakesync.model.types import Claims
from lakesync.staging.records import ARRIVAL_STEP, ClientRecord, Scope, StoredRow


class Access(NamedTuple):
    """What a client may see now. `engine.active_rules` computes it."""

    claims: Claims
    """The claims that the rules read."""
    keys: frozenset[str]
    """The bucket keys that these claims may see."""
    rules_version: int
    """Version of the active rules."""
    sees_by_values: Callable[[StoredRow], bool] | None = None
    """Returns whether the active rules show a row, by the row's values. Set only while a re-index is running, because
    stored rows may then still have the bucket keys of earlier rules. None otherwise: the stored keys suffice."""

    def sees(self, row: StoredRow) -> bool:
        """Return whether the client may see the row as it is now, by its bucket keys or its values."""
        return self.sees_by_keys(row) or (self.sees_by_values is not None and self.sees_by_values(row))

    def sees_by_keys(self, row: StoredRow) -> bool:
        """Return whether the client may see the row by its stored bucket keys."""
        return any(key in self.keys for key in row.keys)

    def same_as(self, scope: Scope) -> bool:
        """Return whether a scope has these claims and rules."""
        return scope.rules_version == self.rules_version and scope.claims == self.claims

    def must_restart_after(self, scope: Scope, *, confirmed: bool) -> bool:
        """Return whether the client must start again, because pages that it was sent later make its cursor useless.

        One client id may be used with several tokens, whose claims differ. A client stores each page together with the
        page's cursor. So a client that still sends an older cursor has not applied the later page, and the older cursor
        keeps its meaning. Later pages that were sent under the present claims and rules need no restart in any
        case: they only repeat what the next pull sends. For other pages, this conclusion is wrong in two cases, in
        which the client must start again:

        - The client does not store the cursors of the later pages (`Scope.has_unstored_cursors`).
        - The later pages were sent under other rules. They may have been sent on the same connection, with the same
          token, while the client's pull was in progress. So the client may apply them after it sent the cursor.

        Args:
            scope: the scope of such pages: a later one than that of the cursor.
            confirmed: whether the client sent the cursor itself. False for the cursor that the server keeps for a
                connection: it covers every page sent on that connection, so unstored cursors do not matter.
        """
        return not self.same_as(scope) and (
            scope.rules_version != self.rules_version or (confirmed and scope.has_unstored_cursors)
        )


def scope_of(record: ClientRecord, cursor: int, connection_claims: Claims | None = None) -> Scope | None:
    """Return the scope of a complete cursor; None if it belongs to no stored scope.

    Args:
        record: the client's record.
        cursor: a cursor that the client was sent.
        connection_claims: the claims of the connection that the cursor belongs to, if other connections of the client
            are sent cursors too; None if it may be any connection's. A scope has only the claims that rules read, so
            only these are compared.
    """
    for scope in reversed(record.scopes):
        if connection_claims is not None and any(
            connection_claims.get(name) != value for name, value in scope.claims.items()
        ):
            continue
        # A complete cursor of this scope is its first one, or any later arrival before the next scope took over.
        # If scopes after this one were removed, `cursors_end` is their first complete cursor; else it is 0.
        is_later = scope.has_complete_cursor and scope.first_cursor < cursor and cursor % ARRIVAL_STEP == 0
        if scope.first_cursor == cursor or is_later:
            return scope if not scope.cursors_end or cursor < scope.cursors_end else None
    return None


def later_scopes(record: ClientRecord, scope: Scope) -> list[Scope]:
    """Return the scopes of a record that began after this one.

    Args:
        record: the client's record.
        scope: one of the record's scopes.
    """
    return [later for later in record.scopes if later.number > scope.number]


def scope_numbered(record: ClientRecord, number: int) -> Scope | None:
    """Return a scope by its number; None if it was removed from the record.

    Args:
        record: the client's record.
        number: the scope's `number`, as a stored page has it.
    """
    return next((scope for scope in record.scopes if scope.number == number), None)


def max_sent(scopes: Iterable[Scope]) -> int:
    """Return the latest feed position at which a row or a DELETE was sent in any of the scopes; 0 if none was sent."""
    return max((scope.sent_up_to for scope in scopes), default=0)
