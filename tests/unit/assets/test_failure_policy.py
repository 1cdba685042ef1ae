"""The log of a failure after which a run continues."""

from unittest.mock import MagicMock

import pytest

from assets.failure_policy import defer_failure
from lakesync.model.errors import FlushError


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (FlushError("not there"), False),
        (ExceptionGroup("two parts failed", [FlushError("a"), FlushError("b")]), False),
        (KeyError("a defect"), True),
        (ExceptionGroup("two parts failed", [FlushError("a"), KeyError("a defect")]), True),
    ],
)
def test_only_defects_are_logged_with_their_traceback(error, has_traceback):
    context = MagicMock()
    context.run.run_id = "r"
    defer_failure(context, MagicMock(deferred_failures=[]), error, "table notes was not merged")
    assert context.log.error.call_args.kwargs["exc_info"] is (error if has_traceback else None)
