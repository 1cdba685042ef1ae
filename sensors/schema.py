"""Creates the sensor that reloads the code location when tables or connectors are registered.

A code location is the process in which Dagster loads assets, jobs and sensors. It creates its assets from the schema
snapshot, a file that lists the registered tables and connectors (external systems to poll); so new ones need a new file
and a reload. The code location (`lakesync_dagster.definitions`) calls this module.
"""

import dagster as dg
import msgspec
import requests

from lakehouse.schema_snapshot import SchemaSnapshot, first_arrival_day, registered, snapshot_file, write_snapshot
from lakesync.config import Config
from lakesync.staging.store.pipeline import OpenStaging
from sensors.backoff import skip_during_outage

LOCATION = "lakesync"
"""The code location's name in every workspace."""

_RELOAD = """
mutation Reload($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) {
    __typename
    ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } }
    ... on PythonError { message }
    ... on ReloadNotSupported { message }
    ... on RepositoryLocationNotFound { message }
    ... on UnauthorizedError { message }
  }
}
"""
_RELOAD_SECONDS = 50
"""Timeout of the request for a reload."""


class ReloadError(Exception):
    """Dagster's webserver did not reload the code location. The next tick tries again."""


class WebserverUnavailableError(ReloadError):
    """Dagster's webserver does not answer, for example while it starts."""


def schema_sensor(config: Config, loaded: SchemaSnapshot, open_staging: OpenStaging) -> dg.SensorDefinition:
    """Create the sensor that reloads the code location when tables or connectors are registered.

    It writes the changed snapshot file and then requests the reload from Dagster's webserver. The sensor of the
    reloaded location compares with the new snapshot, so a reload is repeated only if it failed. If the webserver
    rejects the reload, the tick fails with ReloadError.

    Args:
        config: the project's configuration, with the snapshot file and the webserver's URL.
        loaded: the snapshot from which this code location was created.
        open_staging: opens the staging store, which has the registrations.
    """

    @dg.sensor(
        name="schema_sensor",
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Writes newly registered tables to the schema snapshot and loads this code location again.",
    )
    @skip_during_outage
    def watch(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        with open_staging() as store:
            current = registered(store, config.namespaces.own)
            if config.dagster.partitions_start is None:  # then daily partitions begin on the day of the first push
                first_day = loaded.first_day or first_arrival_day(store)
                current = msgspec.structs.replace(current, first_day=first_day)
        if current == loaded:
            return dg.SkipReason(f"{len(current.tables)} tables, none of them new")
        write_snapshot(snapshot_file(config), current)
        changes = _describe_changes(loaded, current)
        url = config.dagster.url
        if url is None:
            return dg.SkipReason(f"changed: {changes}; reload the location, as dagster.url names no webserver")
        context.log.info("changed: %s", changes)
        try:
            reload_location(url)
        except WebserverUnavailableError as error:
            return dg.SkipReason(f"changed: {changes}; {error}")
        return dg.SkipReason(f"loaded again with {changes}")

    return watch


def _describe_changes(loaded: SchemaSnapshot, current: SchemaSnapshot) -> str:
    """Return the new or changed tables (with their namespace, unless it is the shared one) and connectors as text."""
    loaded_states = loaded.states
    changes = [
        f"{namespace}.{schema.table}" if namespace else schema.table
        for schema, namespace in current.states
        if (schema, namespace) not in loaded_states
    ]
    changes += [each.name for each in current.connectors if each not in loaded.connectors]
    if current.first_day != loaded.first_day:
        changes.append(f"partitions from {current.first_day} on")
    return ", ".join(changes)


def reload_location(url: str) -> None:
    """Request that Dagster's webserver reloads the code location.

    Args:
        url: the webserver's URL.

    Raises:
        ReloadError: the webserver did not reload the location.
        WebserverUnavailableError: it does not answer.
    """
    query = {"query": _RELOAD, "variables": {"location": LOCATION}}
    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy for a server on this machine
            response = session.post(f"{url.rstrip('/')}/graphql", json=query, timeout=_RELOAD_SECONDS)
        response.raise_for_status()
        result = response.json()["data"]["reloadRepositoryLocation"]
    except (requests.ConnectionError, requests.Timeout) as error:
        raise WebserverUnavailableError(
            f"{url} does not answer ({type(error).__name__}); the next tick tries again"
        ) from error
    except (requests.RequestException, KeyError, TypeError) as error:
        raise ReloadError(f"{url} did not reload {LOCATION!r}: {error}; the next tick tries again") from error
    load_error = result.get("locationOrLoadError") or {}
    message = result.get("message") or load_error.get("message")
    if message:
        raise ReloadError(f"{url} could not reload {LOCATION!r}: {message}")
