"""BigQuery as a source, by its own client: a statement is a job, its result comes in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakesync.connectors.base import ConnectorConfig
from lakesync.connectors.hosts import PinnedAdapter
from lakesync.connectors.http import no_auth
from lakesync.connectors.sql.reader import PAGE, Column
from lakesync.connectors.sql.source import SqlSource
from lakesync.model.errors import (
    AdapterError,
    AuthError,
    ConfigurationError,
    ForbiddenError,
    LakeSyncError,
    RateLimitedError,
)
from lakesync.model.optional_imports import extra
from lakesync.model.schema import ColumnType

if TYPE_CHECKING:
    from google.cloud import bigquery

_TYPES: dict[str, ColumnType] = {
    **dict.fromkeys(("INTEGER", "INT64", "FLOAT", "FLOAT64", "NUMERIC", "BIGNUMERIC"), "number"),
    **dict.fromkeys(("BOOLEAN", "BOOL"), "boolean"),
    **dict.fromkeys(("JSON", "RECORD", "STRUCT"), "json"),
}


def source(config: ConnectorConfig) -> SqlSource:
    """The source of one connector."""
    return SqlSource(reader, config)


def reader(config: ConnectorConfig) -> BigQueryReader:
    """The dataset of one connector."""
    return BigQueryReader(_client(config), config.settings["dataset"])


def _client(config: ConnectorConfig) -> bigquery.Client:
    settings = config.settings
    with extra("bigquery", "BigQuery needs its client"):
        from google.cloud import bigquery
    place = {"project": settings["projectId"], "location": settings.get("location") or "US"}
    if endpoint := settings.get("endpoint"):
        config.hosts.check("bigquery.endpoint", endpoint)
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession

        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        session = AuthorizedSession(anonymous)  # type: ignore[no-untyped-call]
        session.auth = no_auth
        for scheme in ("http://", "https://"):
            session.mount(scheme, PinnedAdapter(config.hosts))
        return bigquery.Client(**place, credentials=anonymous, client_options={"api_endpoint": endpoint}, _http=session)
    if key := settings.get("keyFilename"):
        return bigquery.Client.from_service_account_json(key, **place)  # type: ignore[no-untyped-call,no-any-return]
    if not config.own_identity:
        raise ConfigurationError(
            f"bigquery.keyFilename is missing: name a key file, or have the operator lend this server's own Google "
            f"identity: allowed_references in [connectors] with google:{config.gateway}"
        )
    return bigquery.Client(**place)


class BigQueryReader:
    """A dataset, in which queries name their tables."""

    def __init__(self, client: bigquery.Client, dataset: str) -> None:
        self._client = client
        self._dataset = dataset

    @contextmanager
    def reading(self) -> Iterator[BigQueryReading]:
        """Statements one after another: each sees the moment at which it begins."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        try:
            yield BigQueryReading(self._client, self._dataset)
        except (GoogleAPIError, GoogleAuthError, RequestException) as error:
            raise fault(error) from error

    def quoted(self, name: str) -> str:
        """A name in backquotes."""
        return "`" + name.replace("`", "\\`") + "`"

    def text(self, expression: str) -> str:
        """A value as text."""
        return f"CAST({expression} AS STRING)"

    def close(self) -> None:
        """Close its connections."""
        self._client.close()  # type: ignore[no-untyped-call]


class BigQueryReading:
    """Statements in one dataset."""

    horizon = None

    def __init__(self, client: bigquery.Client, dataset: str) -> None:
        self._client = client
        self._dataset = dataset

    def columns(self, query: str) -> list[Column]:
        """The columns of a query."""
        found = self._run(f"SELECT * FROM ({query}) polled LIMIT 0", ()).schema
        return [
            Column(each.name, "json" if each.mode == "REPEATED" else _TYPES.get(each.field_type, "string"))
            for each in found
        ]

    def pages(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Rows page by page."""
        result = self._run(statement, values)
        names = [each.name for each in result.schema]
        for page in result.pages:
            if rows := [tuple(row.values()) for row in page]:
                yield names, rows

    def _run(self, statement: str, values: Sequence[Any]) -> Any:
        from google.cloud import bigquery

        config = bigquery.QueryJobConfig(
            default_dataset=f"{self._client.project}.{self._dataset}",
            query_parameters=[bigquery.ScalarQueryParameter(None, _kind(value), value) for value in values],
        )
        return self._client.query(statement, job_config=config).result(page_size=PAGE)


_PASSING = frozenset({"rateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded", "backendError", "internalError"})
"""Reasons that BigQuery gives with the status of a refusal, and that pass."""


def fault(error: Exception) -> LakeSyncError:
    """The client's error in our tree."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, TransportError

    said = str(getattr(error, "message", "") or error).partition("\n")[0][:300]
    reasons = {str(each.get("reason")) for each in getattr(error, "errors", ()) if isinstance(each, dict)}
    if reasons & _PASSING:
        return RateLimitedError(f"BigQuery takes no more for now ({said}): poll less often, or ask for a higher quota")
    if isinstance(error, exceptions.Unauthorized) or (
        isinstance(error, GoogleAuthError) and not isinstance(error, TransportError)
    ):
        return AuthError(f"BigQuery does not know this identity ({said}): check keyFilename")
    if isinstance(error, exceptions.Forbidden):
        return ForbiddenError(f"BigQuery forbids it ({said}): give the identity Data Viewer and Job User")
    if isinstance(error, exceptions.BadRequest | exceptions.NotFound):
        return ConfigurationError(f"BigQuery refuses the query ({said}): mend the connector's query")
    return AdapterError(f"BigQuery failed ({said})")


def _kind(value: Any) -> str:
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
