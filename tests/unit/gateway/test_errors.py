"""Every error has a status, and all error responses have one form."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest
from structlog.testing import capture_logs

from gateway.errors import STATUSES, close_code_of, error_response, note_error, status_of
from gateway.request_log import RequestRecord
from lakesync.engine.sharding.shard_gateway import of_shard
from lakesync.model import errors as exceptions
from lakesync.model.errors import (
    AdapterError,
    LakeSyncError,
    RejectedError,
    Rejection,
    StagingUnavailableError,
    TransientError,
)
from lakesync.staging.postgres.connection import unavailable

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


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if issubclass(kind, TransientError)])
def test_the_details_of_an_error_are_only_in_the_log(kind):
    error = kind("the store failed", details="Postgres at 10.0.0.5: user ls")
    assert str(error) == "the store failed (Postgres at 10.0.0.5: user ls)"
    assert json.loads(error_response(error, "r").body)["error"] == "the store failed"
    assert close_code_of(error)[1] == f"{kind.code}: the store failed"
    record = RequestRecord("r")
    with capture_logs() as lines:
        note_error(error, record)
    assert (record.code, [line["error"] for line in lines]) == (kind.code, [str(error)])


def test_the_error_of_a_shard_names_the_shard_and_not_its_server():
    failed: Future[None] = Future()
    failed.set_exception(unavailable("10.0.0.5/db", "a read", OSError("no route")))
    steps = of_shard("orders", failed)
    next(steps)
    with pytest.raises(StagingUnavailableError) as raised:
        steps.throw(failed.exception())
    assert "'orders'" in raised.value.public_message
    assert "10.0.0.5" not in raised.value.public_message
    assert "10.0.0.5" in str(raised.value)


def test_an_unexpected_error_reveals_no_details():
    answer = error_response(KeyError("the inner detail"), "the-id")
    assert answer.status_code == 500
    assert json.loads(answer.body)["code"] == "INTERNAL_ERROR"
    assert b"inner detail" not in answer.body
