"""Jira's source with unusual answers to searches."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from lakesync.connectors.base import ConnectorConfig, SourceRow
from lakesync.connectors.jira.source import ISSUES, JiraSource
from lakesync.model.errors import AdapterError


@pytest.fixture
def source():
    settings = {"domain": "shop", "email": "a@b.c", "apiToken": "t", "jql": "status = Done"}
    made = JiraSource(ConnectorConfig("g", "jira", "jira", settings))
    yield made
    made.close()


def test_matching_issues_on_a_later_page_are_not_deleted(source, monkeypatch):
    def post(path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if path == "/issue/bulkfetch":
            return {"issues": [{"key": key} for key in body["issueIdsOrKeys"]]}
        if "nextPageToken" in body:
            return {"issues": [{"key": "SUP-2"}]}
        return {"issues": [{"key": "SUP-1"}], "nextPageToken": "second"}

    monkeypatch.setattr(source._client, "post", post)
    monkeypatch.setattr(source._client, "get", lambda *_, **__: {"values": [{"key": "SUP"}], "total": 1})
    rows = [SourceRow(f"SUP-{number}", {}) for number in (1, 2, 3)]
    assert source.find_deleted(ISSUES, rows) == {"SUP-3"}


def test_a_poll_ends_if_a_page_token_is_repeated(source, monkeypatch):
    issue = {"id": "1", "key": "SUP-1", "fields": {"updated": "2026-01-02T03:04:05.000+0000"}}
    monkeypatch.setattr(source._client, "post", lambda *_, **__: {"issues": [issue], "nextPageToken": "same"})
    with pytest.raises(AdapterError, match="'same' twice"):
        list(islice(source.changes(ISSUES, None), 5))
