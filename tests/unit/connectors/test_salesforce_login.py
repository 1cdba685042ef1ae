"""Salesforce's login: unusual responses."""

import pytest
import requests

from lakesync.connectors.http_api import HttpApi
from lakesync.connectors.salesforce.api import SalesforceClient
from lakesync.model.errors import AdapterError


@pytest.mark.parametrize("body", ["<html>", "[]", '{"access_token": "t"}', '{"n": %s}' % ("9" * 5_000), "[" * 100_000])
def test_a_login_response_without_a_token_is_an_error_of_the_adapter(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = requests.Response()
    response._content, response.url = body.encode(), "https://acme.example/services/oauth2/token"
    monkeypatch.setattr(HttpApi, "call", lambda *_, **__: response)
    client = SalesforceClient({"instanceUrl": "https://acme.example", "clientId": "c", "clientSecret": "s"})
    with pytest.raises(AdapterError, match=r"https://acme\.example returned no token"):
        client.call("GET", "/limits")
