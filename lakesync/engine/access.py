"""What a client may see, from its claims and the rules in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lakesync.feed.apply import keys_of
from lakesync.feed.positions import Access
from lakesync.model.types import Claims
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import SyncRules
from lakesync.staging.records import GatewayConfig, StoredRow
from lakesync.staging.store import View

_NO_RULES = SyncRules(version=1, buckets=())


class RulesCache:
    """The bucket index of the rules in force, made once a rules version.

    A change of rules that was taken back leaves its version to the next one, so the rules themselves are compared too.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[int, SyncRules | None], BucketIndex] | None = None
        self._in_line: tuple[int, SyncRules | None] | None = None
        """Rules with which all rows are known to be in line."""

    def index(self, config: GatewayConfig) -> BucketIndex:
        """The index of `config`'s rules."""
        known = self._known
        wanted = (config.rules_version, config.rules)
        if known is None or known[0] != wanted:
            known = (wanted, BucketIndex(config.rules or _NO_RULES))
            self._known = known
        return known[1]

    def access(self, view: View, claims: Claims) -> Access:
        """What a client with these claims may see at this reading."""
        config = view.config
        index = self.index(config)
        keys = index.client_keys(claims, view.buckets)
        directly = None if self.is_in_line(view) else _asked_of_rows(index, claims)
        return Access(index.relevant(claims), keys, config.rules_version, directly)

    def is_in_line(self, view: View) -> bool:
        """Whether every row's bucket keys are those of the rules in force."""
        config = view.config
        rules = (config.rules_version, config.rules)
        if config.rules_version == 0 or self._in_line == rules:
            return True
        mark = view.reindexing()
        if mark is None or mark.rules_version != config.rules_version or not mark.done:
            return False
        self._in_line = rules
        return True


def _asked_of_rows(index: BucketIndex, claims: Claims) -> Callable[[StoredRow], bool]:
    """Whether the rules let a client with these claims see a row, whatever keys are stored of it."""

    def sees(row: StoredRow) -> bool:
        keys = keys_of(row, index)
        return bool(keys) and not index.client_keys(claims, lambda prefix: _with(prefix, keys)).isdisjoint(keys)

    return sees


def _with(prefix: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if key.startswith(prefix)]
