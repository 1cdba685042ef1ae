"""Runs property tests with the example count of the Hypothesis profile, without a deadline."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings


def deepen(item: pytest.Item) -> None:
    """Run a property test with the profile's number of examples and without a timeout.

    A timeout would leave the threads and connections of an example open.
    """
    item.add_marker(pytest.mark.timeout(0))
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if test is not None and own is not None:
        many = settings(
            own,
            max_examples=settings().max_examples,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        test._hypothesis_internal_use_settings = many
