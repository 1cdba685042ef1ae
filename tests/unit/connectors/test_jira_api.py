"""Jira's REST client: errors of unusual responses."""

import json
from itertools import islice
from typing import Any

import pytest
import requests

from lakesync.connectors.jira import api
from lakesync.model.errors import AdapterError


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"errors": ["first", "second"]}, "first; second"),
        ({"errors": None, "errorMessages": None, "message": "broken"}, "broken"),
        ({"errors": {"summary": "is required"}, "errorMessages": ["wrong"]}, "wrong; summary: is required"),
    ],
)
def test_error_messages_are_read_from_lists_objects_and_null(body: dict[str, Any], text: str) -> None:
    response = requests.Response()
    response._content = json.dumps(body).encode()
    assert api._error_text(response) == text


def test_search_that_repeats_a_page_token_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    client = api.JiraClient({"domain": "shop", "email": "a@b.c", "apiToken": "t"})
    monkeypatch.setattr(client, "post", lambda *_, **__: {"issues": [], "nextPageToken": "same"})
    with pytest.raises(AdapterError, match="'same' twice"):
        list(islice(client.search_pages("project = A", ["summary"]), 5))
