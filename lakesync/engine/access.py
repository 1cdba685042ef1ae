"""What a client may see, from its claims and the rules in force."""

from __future__ import annotations

from lakesync.feed.positions import Access
from lakesync.rules.keys import BucketIndex
from lakesync.rules.model import SyncRules
from lakesync.staging.records import GatewayConfig
from lakesync.staging.store import View
from lakesync.types import Claims

_NO_RULES = SyncRules(version=1, buckets=())


class RulesCache:
    """The bucket index of the rules in force, made once a rules version.

    A change of rules that was taken back leaves its version to the next one, so the rules themselves are compared too.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[int, SyncRules | None], BucketIndex] | None = None

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
        return Access(index.relevant(claims), keys, config.rules_version)
