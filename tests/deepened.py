"""Laws over as many examples as the profile of Hypothesis says, whatever their tests say, however long it takes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings


def deepen(item: pytest.Item) -> None:
    """Have a test that draws examples draw the profile's number of them; none is ended by the clock.

    A clock that ends a law in the middle of a history leaves the history's threads and connections as they are.
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
