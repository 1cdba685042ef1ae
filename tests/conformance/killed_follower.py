"""A follower of a told history, in a process of its own, which a test has die somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakesync.adapters.following import Choice, follow_history
from tests.conformance import adapter_places
from tests.conformance.test_adapter_tables import NOTES
from tests.conformance.told_history import history, pushes


def follow(kind: str, folder: Path, servers: Mapping[str, str], count: int) -> None:
    """Follow so many pushes to a place, whose servers listen as told."""
    adapter_places.SERVERS.update(servers)
    adapter = adapter_places.DATABASES[kind](folder)
    list(follow_history(adapter, "leaf", Choice(), history(pushes(count)), [NOTES], at_once=5))
