"""Computes what a client may see from its token's claims and the active sync rules.

Every gateway has one `RulesCache`; pulls, pushes, subscriptions and explanations call `access` in their transaction.
Rows are stored with *bucket keys*, and a client's claims give it bucket keys: it may see the rows with one of its keys.
After a change of the rules, a *re-index* gives all rows their new keys, in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakesync.feed.apply import keys_of
from lakesync.feed.positions import Access
from lakesync.model.types import Claims
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import SyncRules
from lakesync.staging.records import GatewayConfig, StoredRow
from lakesync.staging.store.feed import ClientView

_NO_RULES = SyncRules(version=1, buckets=())


class RulesCache:
    """Caches the bucket index of one gateway's active rules: the rules, compiled to compute bucket keys.

    The cache compares the rules and not only their version. If the transaction of a change is rolled back, the next
    change gets the same version.
    """

    def __init__(self) -> None:
        self._indexed: tuple[tuple[int, SyncRules | None], BucketIndex] | None = None
        """The rules' version, the rules, and their index."""
        self._reindexed: tuple[int, SyncRules | None] | None = None
        """Version and rules by which all rows are known to have their bucket keys."""

    def index(self, config: GatewayConfig) -> BucketIndex:
        """Return the bucket index of a configuration's rules; without rules, its keys show everyone every row."""
        indexed = self._indexed
        rules = (config.rules_version, config.rules)
        if indexed is None or indexed[0] != rules:
            indexed = (rules, BucketIndex(config.rules or _NO_RULES))
            self._indexed = indexed
        return indexed[1]

    def access(self, view: ClientView, claims: Claims) -> Access:
        """Return what a client may see: its bucket keys and, while a re-index is running, a test of single rows.

        Args:
            view: a consistent read of the gateway's store.
            claims: the verified claims of the client's token.
        """
        config = view.config
        index = self.index(config)
        keys = index.client_keys(claims, view.buckets)
        directly = None if self.is_reindexed(view) else _row_test(index, claims)
        return Access(index.relevant(claims), keys, config.rules_version, directly)

    def is_reindexed(self, view: ClientView) -> bool:
        """Return whether all rows are stored with the bucket keys of the active rules."""
        config = view.config
        rules = (config.rules_version, config.rules)
        if config.rules_version == 0 or self._reindexed == rules:
            return True
        progress = view.reindexing()
        if progress is None or progress.rules_version != config.rules_version or not progress.done:
            return False
        self._reindexed = rules
        return True


def _row_test(index: BucketIndex, claims: Claims) -> Callable[[StoredRow], bool]:
    """Return a function that tells whether the rules show a row to the claims, by the row's values.

    It ignores the stored bucket keys, which may be those of earlier rules while a re-index is running.
    """

    def sees(row: StoredRow) -> bool:
        keys = keys_of(row, index)
        return bool(keys) and not index.client_keys(claims, lambda prefix: _starting(keys, prefix)).isdisjoint(keys)

    return sees


def _starting(keys: Iterable[str], prefix: str) -> list[str]:
    return [key for key in keys if key.startswith(prefix)]
