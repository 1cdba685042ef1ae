"""What a client may see, by its claims and the active sync rules."""

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
    """Caches the bucket index of the active rules.

    A rolled-back change of rules leaves its version to the next change, so the rules themselves are compared too.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[int, SyncRules | None], BucketIndex] | None = None
        self._in_line: tuple[int, SyncRules | None] | None = None
        """Rules by which all rows have their bucket keys."""

    def index(self, config: GatewayConfig) -> BucketIndex:
        """Return the bucket index of a configuration's rules."""
        known = self._known
        wanted = (config.rules_version, config.rules)
        if known is None or known[0] != wanted:
            known = (wanted, BucketIndex(config.rules or _NO_RULES))
            self._known = known
        return known[1]

    def access(self, view: ClientView, claims: Claims) -> Access:
        """Return what a client may see.

        Args:
            view: a consistent read of the gateway's store.
            claims: the verified claims of the client's token.
        """
        config = view.config
        index = self.index(config)
        keys = index.client_keys(claims, view.buckets)
        directly = None if self.is_in_line(view) else _row_test(index, claims)
        return Access(index.relevant(claims), keys, config.rules_version, directly)

    def is_in_line(self, view: ClientView) -> bool:
        """Return whether all rows have the bucket keys of the active rules."""
        config = view.config
        rules = (config.rules_version, config.rules)
        if config.rules_version == 0 or self._in_line == rules:
            return True
        mark = view.reindexing()
        if mark is None or mark.rules_version != config.rules_version or not mark.done:
            return False
        self._in_line = rules
        return True


def _row_test(index: BucketIndex, claims: Claims) -> Callable[[StoredRow], bool]:
    """Return a function that evaluates the rules for a row, whatever bucket keys are stored for it."""

    def sees(row: StoredRow) -> bool:
        keys = keys_of(row, index)
        return bool(keys) and not index.client_keys(claims, lambda prefix: _with(prefix, keys)).isdisjoint(keys)

    return sees


def _with(prefix: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if key.startswith(prefix)]
