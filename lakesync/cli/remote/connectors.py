"""`lakesync connectors`: registers, lists, tests and unregisters connectors.

A connector is a configured external system, such as a Jira site, that is polled for rows and executes actions. All
commands but `test` call the gateway. `test` itself sends requests to the external system.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token: `--url`, `--gateway`,
`--token-file` and `--data`. A gateway is one app's stream of changes; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.commands import ConnectionOptions, Data, Gateway, Json, Url, Yes, command_app, examples, load_settings
from lakesync.cli.input_files import read_json
from lakesync.model.errors import LakeSyncError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.connectors import Connectors

connectors_app = command_app(
    """Register, list, test and unregister connectors.

    A connector polls an external system and runs actions there.
    """,
    examples(("lakesync connectors types", "available types"), ("lakesync connectors register jira.json", "")),
)


@connectors_app.command(
    "list", epilog=examples(("lakesync connectors list --gateway shop", "without settings and secrets"))
)
def list_(*, options: ConnectionOptions, as_json: Json = False) -> None:
    """List the connectors of a gateway."""
    registered = options.connect().get("/admin/connectors/{gateway}")
    output.print_rows(
        registered, as_json=as_json, columns=("name", "type", "hasIngest=ingests"), if_empty="no connectors"
    )


@connectors_app.command(epilog=examples(("lakesync connectors types --json", "with the JSON Schema of their settings")))
def types(url: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """List the types of connectors that the gateway supports."""
    descriptors = ConnectionOptions(url=url, data=data).connect(gateway_required=False).get("/connectors/types")
    output.print_rows(descriptors, as_json=as_json, columns=("type", "displayName=name", "category", "description"))


@connectors_app.command(
    epilog=examples(
        ("lakesync connectors register jira.json", "with secrets as references, env:NAME"),
        ("lakesync fake jira --json | jq .connector | lakesync connectors register -", "a fake Jira site"),
    )
)
def register(
    file: Annotated[
        Path, typer.Argument(help="JSON with name, type, settings and ingest; `-` is stdin.", allow_dash=True)
    ],
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Register a connector.

    The gateway encrypts secrets that are not references.
    """
    response = options.connect().post("/admin/connectors/{gateway}", read_json(file))
    output.print_fields(response, as_json=as_json)


@connectors_app.command(epilog=examples(("lakesync connectors unregister jira --yes", "its rows stay")))
def unregister(
    name: Annotated[str, typer.Argument(help="The connector's name.")],
    *,
    options: ConnectionOptions,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Unregister a connector; its rows stay."""
    output.confirm(f"Unregister the connector {name!r}?", assume_yes=yes)
    response = options.connect().delete("/admin/connectors/{gateway}", name)
    output.print_fields(response, as_json=as_json)


@connectors_app.command(
    "test",
    epilog=examples(
        ("lakesync connectors test jira", "credentials, permissions, clock and one page"),
        ("lakesync connectors test jira --gateway shop --json", "one object per check"),
    ),
)
def probe_connector(
    name: Annotated[str, typer.Argument(help="The connector's name.")],
    gateway: Gateway = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Test a connector's credentials, permissions and clock.

    Also reads one page of each table. The requests come from this machine, with the secrets that it can decrypt.
    Nothing is polled or changed.
    """
    from contextlib import closing

    from lakesync.cli.connection import choose_gateway
    from lakesync.cli.local.staging import open_store
    from lakesync.connectors.base import probes_of
    from lakesync.engine.standalone_engine import log_to_stderr

    log_to_stderr()
    config = load_settings(data)
    gateway_id = choose_gateway(config, gateway)
    with open_store(config) as store:
        registered = store.connectors(gateway_id) if gateway_id in store.gateways() else ()
        stored = next((each for each in registered if each.name == name), None)
    if stored is None:
        raise NotFoundError(f"gateway {gateway_id!r} has no connector {name!r}; `lakesync connectors list` lists them")
    connector_types = _connector_types(config)
    connector = connector_types.open(gateway_id, stored)  # its settings, with the secrets in plain text
    connector_type = connector_types.find(stored.type)
    assert connector_type is not None  # `open` raises for an unknown type
    errors: list[LakeSyncError] = []
    # `open_source` raises ConfigurationError for a type that is not polled, such as a webhook
    with closing(connector_type.open_source(connector)) as source, _without_retries():  # `source` sends the requests
        for probe in probes_of(source):
            try:
                detail, code = probe.run(), None
            except LakeSyncError as error:
                errors.append(error)
                detail, code = str(error), error.code
            _print_check(probe.name, detail, code, as_json=as_json)
            if code is not None and probe.name == "credentials":
                break  # all other checks would fail too
    if errors:
        raise typer.Exit(exit_codes.code_of(type(errors[0])) or exit_codes.ExitCode.FAILED)


@contextmanager
def _without_retries() -> Iterator[None]:
    """Switch off retries (by the library stamina), so that a check reports an error immediately."""
    import stamina

    stamina.set_active(False)
    try:
        yield
    finally:
        stamina.set_active(True)


def _print_check(name: str, detail: str, code: str | None, *, as_json: bool) -> None:
    """Print the result of a check; `code` is its error code, None if it succeeded."""
    if as_json:
        output.print_json({"check": name, "ok": code is None, "detail": detail, **({"code": code} if code else {})})
    elif code is None:
        print(f"ok    {name}: {detail}")
    else:
        print(f"FAIL  {name}: {detail}", file=sys.stderr)


def _connector_types(config: Config) -> Connectors:
    """Return the connector types that can decrypt stored settings, with the configured key or the generated one."""
    from lakesync.cli.data_folder import with_running_services
    from lakesync.connectors import Connectors

    return Connectors.configured(with_running_services(config))
