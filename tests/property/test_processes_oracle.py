"""L1 to L8, R1 to R6 over Postgres, with two processes that answer in turn, and with lost commits."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.property.feed_history import History, play
from tests.property.feed_postgres import LostCommitsHistory, PostgresHistory, ProcessesHistory
from tests.property.feed_steps import RULES, skews


@pytest.mark.parametrize("kind", [ProcessesHistory, LostCommitsHistory], ids=["two processes", "lost commits"])
def test_every_client_ends_with_its_rows(own_database: str, kind: type[History]) -> None:
    PostgresHistory.url = own_database

    @settings(deadline=None, max_examples=2, suppress_health_check=list(HealthCheck))
    @given(history=kind.histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
    def every_history(history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int) -> None:
        play(history, skews, rules, kind)

    every_history()
