"""Every error has a status, and all error responses have one form."""

from __future__ import annotations

import json

import pytest

from gateway.errors import STATUSES, error_response, status_of
from lakesync.model import errors as exceptions
from lakesync.model.errors import AdapterError, LakeSyncError, RejectedError, Rejection, TransientError

GROUPS = {"TerminalError", "TransientError", "RejectedError"}
ERRORS = [
    kind
    for kind in vars(exceptions).values()
    if isinstance(kind, type) and issubclass(kind, LakeSyncError) and kind.__name__ not in GROUPS
]
DOCUMENTED = {
    ("VALIDATION_ERROR", 400),
    ("VALIDATION_ERROR", 413),
    ("AUTH_ERROR", 401),
    ("FORBIDDEN", 403),
    ("NOT_FOUND", 404),
    ("CLOCK_DRIFT", 409),
    ("RESYNC_REQUIRED", 409),
    ("SCHEMA_ERROR", 400),
    ("SCHEMA_ERROR", 422),
    ("RATE_LIMITED", 429),
    ("BACKPRESSURE_ERROR", 503),
    ("STAGING_UNAVAILABLE", 503),
    ("ADAPTER_ERROR", 502),
    ("FLUSH_ERROR", 500),
    ("INTERNAL_ERROR", 500),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_class_has_an_http_status(kind):
    assert kind in STATUSES


def test_error_codes_have_the_documented_statuses():
    assert {(kind.code, status_of(kind)) for kind in ERRORS} >= DOCUMENTED


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_answered_in_one_form(kind):
    answer = error_response(kind("what is wrong"), "the-id")
    body = json.loads(answer.body)
    assert answer.status_code == status_of(kind)
    assert (body["code"], body["requestId"]) == (kind.code, "the-id")
    assert ("what is wrong" in body["error"]) == (kind is not LakeSyncError)
    assert ("retry-after" in answer.headers) == (answer.status_code in (429, 503))


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if issubclass(kind, RejectedError)])
def test_errors_list_rejected_deltas(kind):
    body = json.loads(error_response(kind("no", [Rejection("id", kind.code, "why")]), "r").body)
    assert body["rejected"] == [{"deltaId": "id", "code": kind.code, "message": "why"}]


@pytest.mark.parametrize(("given", "said"), [(None, "1"), (0.2, "1"), (2.5, "3")])
def test_retry_after_is_in_whole_seconds(given, said):
    kinds = [kind for kind in ERRORS if issubclass(kind, TransientError) and status_of(kind) in (429, 503)]
    for kind in kinds:
        assert error_response(kind("later", retry_after=given), "r").headers["retry-after"] == said


def test_a_known_wait_is_reported_with_every_status():
    answer = error_response(AdapterError("the backend is busy", retry_after=30.0), "r")
    assert (answer.status_code, answer.headers["retry-after"]) == (502, "30")


def test_an_unexpected_error_reveals_no_details():
    answer = error_response(KeyError("the inner detail"), "the-id")
    assert answer.status_code == 500
    assert json.loads(answer.body)["code"] == "INTERNAL_ERROR"
    assert b"inner detail" not in answer.body
