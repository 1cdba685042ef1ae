"""P1 to P3: gateways killed under load, at named crash points and at random. `scripts/crash-storm` kills hundreds."""

from __future__ import annotations

import pytest

from tests.conformance.book import make_delta
from tests.crash_storm.pushers import Journal
from tests.crash_storm.storm import Storm
from tests.crash_storm.verdict import Verdict


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
def test_acknowledged_pushes_are_stored_once_and_no_push_partially(tmp_path, request, kind):
    if kind == "sqlite":
        staging = f"sqlite://{tmp_path / 'staging'}"
    else:
        from tests.conformance.places import postgres

        staging = postgres(request)
    report = Storm(staging, tmp_path, seed=11).run(kills=5)
    assert report.problems == []
    assert (report.losses, report.doubles) == (0, 0)
    assert report.acknowledged > 0
    assert report.repeats > 0
    assert report.flushed >= report.acknowledged


def test_the_verdict_reports_lost_duplicate_and_partial_pushes():
    first, second, third = (make_delta("c", hlc, f"r{hlc}", x=1) for hlc in (1, 2, 3))
    journal = Journal(acknowledged=[(first,)], doubtful=[(second, third)], refused=["409 stale"])
    verdict = Verdict([journal], [second, second])
    assert (verdict.losses, verdict.doubles) == (1, 1)
    assert len(verdict.problems) == 4
    assert Verdict([Journal(acknowledged=[(first,)])], [first]).problems == []
    assert Verdict([], [first]).problems == ["1 deltas are stored that no client sent"]
