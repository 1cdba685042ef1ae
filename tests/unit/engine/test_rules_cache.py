"""A gateway uses the index of the active rules, also after a change that was rolled back."""

from lakesync.engine.active_rules import RulesCache
from lakesync.rules.model import parse_rules
from lakesync.staging.records import GatewayConfig


def config(team):
    """Version 1 of the rules: one team's rows."""
    rules = {"version": 1, "buckets": [{"name": team, "tables": [], "filters": []}]}
    return GatewayConfig(version=1, schemas={}, rules=parse_rules(rules), rules_version=1)


def test_rolled_back_rules_are_not_served():
    cache = RulesCache()
    abandoned, kept = config("a"), config("b")
    assert cache.index(abandoned) is cache.index(abandoned)
    before, after = (cache.index(rules).row_keys("t", {}) for rules in (abandoned, kept))
    assert before != after
