"""Reads a BigQuery dataset for the polls of a connector: the `Reader` and `Snapshot` that `SqlSource` uses.

Each statement is a job whose result is read in pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.host_policy import PinnedAdapter
from lakesync.connectors.sql.reader import ROWS_PER_PAGE, Column, ResultPage
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    RateLimitedError,
    extra,
)
from lakesync.model.schema import ColumnType
from lakesync.wire.http_sessions import BoundedAdapter, mount, no_auth

if TYPE_CHECKING:
    from google.cloud import bigquery

_TYPES: dict[str, ColumnType] = {
    **dict.fromkeys(("INTEGER", "INT64", "FLOAT", "FLOAT64", "NUMERIC", "BIGNUMERIC"), "number"),
    **dict.fromkeys(("BOOLEAN", "BOOL"), "boolean"),
    **dict.fromkeys(("JSON", "RECORD", "STRUCT"), "json"),
}
"""BigQuery's type → the schema's; other types become strings."""
_RETRY_SECONDS = 60.0
"""Seconds after the first attempt during which a failed request is repeated."""


def reader(config: ConnectorConfig) -> BigQueryReader:
    """Return the reader of a connector's dataset; `built_in.py` makes an `SqlSource` of this function."""
    return BigQueryReader(_client(config), config.settings["dataset"])


class BigQueryReader:
    """`Reader` of a dataset. It is its own `Snapshot`: each statement sees the data at its start."""

    horizon = None
    """Which changes of open transactions a snapshot may not see: BigQuery does not report it."""

    def __init__(self, client: bigquery.Client, dataset: str) -> None:
        """Store the client.

        Args:
            client: an open client.
            dataset: the dataset's name.
        """
        self._client = client
        self.database = f"{client.project}.{dataset}"

    @contextmanager
    def snapshot(self) -> Iterator[BigQueryReader]:
        """Yield this reader, and convert the client's errors.

        Raises:
            AuthError, ForbiddenError, ConfigurationError, RateLimitedError, AdapterError: as `map_error`.
        """
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        try:
            yield self
        except (GoogleAPIError, GoogleAuthError, RequestException) as error:
            raise map_error(error) from error

    def quoted(self, name: str) -> str:
        """Quote a name with backticks."""
        return "`" + name.replace("`", "\\`") + "`"

    def text(self, expression: str) -> str:
        """Return an expression for a value as text."""
        return f"CAST({expression} AS STRING)"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def columns(self, query: str) -> list[Column]:
        """Return the columns of a query."""
        found = self._run(f"SELECT * FROM ({query}) polled LIMIT 0", ()).schema
        return [
            Column(each.name, "json" if each.mode == "REPEATED" else _TYPES.get(each.field_type, "string"))
            for each in found
        ]

    def query_pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[ResultPage]:
        """Yield the pages of a statement's result.

        Args:
            statement: the statement.
            values: the values of its placeholders.
        """
        result = self._run(statement, values)
        names = [each.name for each in result.schema]
        for page in result.pages:
            if rows := [tuple(row.values()) for row in page]:
                yield ResultPage(names, rows)

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        """Run a statement as a job, and return its result."""
        from google.cloud import bigquery
        from google.cloud.bigquery import retry

        config = bigquery.QueryJobConfig(
            default_dataset=self.database,
            query_parameters=[bigquery.ScalarQueryParameter(None, _parameter_type(value), value) for value in values],
        )
        retrying = retry.DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)
        # Without `job_retry=None` the driver tries for five minutes to start a job on an unreachable server.
        job = self._client.query(statement, job_config=config, retry=retrying, job_retry=None)
        return job.result(page_size=ROWS_PER_PAGE, retry=retrying)


_TRANSIENT_REASONS = frozenset(
    {"rateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded", "backendError", "internalError"}
)
"""Error reasons that are transient although BigQuery returns them with a client error."""


def map_error(error: Exception) -> LakeSyncError:
    """Return LakeSync's error for an error of the client library."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, TransportError

    reason = str(getattr(error, "message", "") or error).partition("\n")[0][:300]
    reasons = {str(each.get("reason")) for each in getattr(error, "errors", ()) if isinstance(each, dict)}
    if reasons & _TRANSIENT_REASONS:
        return RateLimitedError(
            f"BigQuery rejects more requests for now ({reason}): poll less often, or ask for a higher quota"
        )
    if isinstance(error, exceptions.Unauthorized) or (
        isinstance(error, GoogleAuthError) and not isinstance(error, TransportError)
    ):
        return AuthError(f"BigQuery rejects this identity ({reason}): check keyFilename")
    if isinstance(error, exceptions.Forbidden):
        return ForbiddenError(f"BigQuery denies permission ({reason}): give the identity Data Viewer and Job User")
    if isinstance(error, exceptions.BadRequest | exceptions.NotFound):
        return ConfigurationError(f"BigQuery rejects the query ({reason}): correct the connector's query")
    return AdapterError(f"BigQuery failed ({reason})")


def _client(config: ConnectorConfig) -> bigquery.Client:
    """Create a client with the connector's credentials.

    Raises:
        ConfigurationError: google-cloud-bigquery is not installed, the endpoint is not allowed, or there are no
            credentials.
    """
    settings = config.settings
    with extra("bigquery", "BigQuery needs its client"):
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud import bigquery
        from google.oauth2.service_account import Credentials
    location = {"project": settings["projectId"], "location": settings.get("location") or "US"}
    if endpoint := settings.get("endpoint"):
        config.hosts.check("bigquery.endpoint", endpoint)
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        session = AuthorizedSession(anonymous)  # type: ignore[no-untyped-call]
        session.auth = no_auth  # without it, requests would send this machine's ~/.netrc
        mount(session, PinnedAdapter(config.hosts))  # connects only to the address that `config.hosts` has checked
        return bigquery.Client(
            **location, credentials=anonymous, client_options={"api_endpoint": endpoint}, _http=session
        )
    scopes = bigquery.Client.SCOPE
    if key := settings.get("keyFilename"):
        credentials = Credentials.from_service_account_file(key, scopes=scopes)  # type: ignore[no-untyped-call]
    elif config.may_use_server_identity:
        credentials, _ = google.auth.default(scopes=scopes)
    else:
        raise ConfigurationError(
            f"bigquery.keyFilename is missing: name a key file, or ask the operator to allow this server's Google "
            f"identity: allowed_references in [connectors] with google:{config.gateway}"
        )
    session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    mount(session, BoundedAdapter())  # gives requests without a timeout one
    return bigquery.Client(**location, credentials=credentials, _http=session)


def _parameter_type(value: Any) -> str:
    """Return BigQuery's type for the value of a placeholder."""
    match value:
        case datetime():
            return "TIMESTAMP" if value.tzinfo is not None else "DATETIME"
        case bool():
            return "BOOL"
        case int():
            return "INT64"
        case float():
            return "FLOAT64"
    return "STRING"
