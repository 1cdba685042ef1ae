"""Signs in to Salesforce: client credentials flow, or the older username-password flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from lakesync.connectors.http_api import HttpApi
from lakesync.model.errors import AdapterError, AuthError, LakeSyncError, RateLimitedError

_ADVICE = {
    "invalid_client_id": "check clientId: it is the consumer key of a connected app",
    "invalid_client": "check clientSecret",
    "invalid_grant": "check username and password (with its security token behind it), and that the app may sign in so",
    "unsupported_grant_type": "allow the connected app this flow",
}


def login_url(settings: Mapping[str, Any]) -> str:
    """Return where a connector signs in: a user at the login server of `isSandbox`, an app at its organisation."""
    if named := settings.get("loginUrl"):
        return str(named)
    if settings.get("username"):
        return f"https://{'test' if settings.get('isSandbox') else 'login'}.salesforce.com"
    return str(settings["instanceUrl"])


def sign_in(settings: Mapping[str, Any], **http_options: Any) -> tuple[str, str]:
    """Return the organisation's URL and an access token.

    With a username the username-password flow is used, otherwise the client credentials flow.

    Args:
        settings: the connector's settings.
        http_options: keyword arguments of `HttpApi`.

    Raises:
        AuthError: Salesforce rejected the credentials; names which.
    """
    form = {"client_id": settings["clientId"], "client_secret": settings["clientSecret"]}
    if settings.get("username"):
        form |= {"grant_type": "password", "username": settings["username"], "password": settings["password"]}
    else:
        form["grant_type"] = "client_credentials"
    login = login_url(settings)
    api = HttpApi(login, _map_error, **http_options)
    try:
        answer = api.call("POST", "/services/oauth2/token", data=form).json()
        return str(answer["instance_url"]), str(answer["access_token"])
    except (requests.JSONDecodeError, KeyError, TypeError) as error:
        raise AdapterError(f"{login} returned no token: is this the address of Salesforce?") from error
    finally:
        api.close()


def _map_error(answer: requests.Response) -> LakeSyncError | None:
    if answer.status_code < 300:
        return None
    try:
        said = answer.json()
        code, words = str(said["error"]), str(said.get("error_description"))
    except (requests.JSONDecodeError, KeyError, TypeError):
        return AdapterError(f"Salesforce's login failed with status {answer.status_code}")
    if answer.status_code >= 500:
        return AdapterError(f"Salesforce's login failed with status {answer.status_code} ({code}: {words})")
    if words == "login rate exceeded":
        return RateLimitedError(f"Salesforce rejects more logins for now ({words})")
    return AuthError(f"Salesforce rejects the login ({code}: {words}): {_ADVICE.get(code, 'check the settings')}")
