"""`lakesync connectors`: the systems that actions and ingestion talk to."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, Yes, read_json, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.connectors import Connectors

app = command_app(
    "Register the systems that actions and ingestion talk to.",
    examples(("lakesync connectors types", "what there is"), ("lakesync connectors register jira.json", "")),
)


@app.callback()
def connectors() -> None:
    """Register the systems that actions and ingestion talk to."""


@app.command("list", epilog=examples(("lakesync connectors list --gateway shop", "never a setting or a secret")))
def list_(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """List the connectors of a gateway."""
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).get("/admin/connectors/{gateway}")
    output.records(
        told, as_json=as_json, columns=("name", "type", "hasIngest=ingests"), none="no connector is registered"
    )


@app.command(epilog=examples(("lakesync connectors types --json", "with the JSON Schema of each one's settings")))
def types(url: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """List the types of connectors that the gateway knows."""
    from lakesync.cli.connection import connect

    told = connect(url, None, None, data, named=False).get("/connectors/types")
    output.records(told, as_json=as_json, columns=("type", "displayName=name", "category", "description"))


@app.command(
    epilog=examples(
        ("lakesync connectors register jira.json", "secrets in it are references, env:NAME, or are sealed"),
        ("lakesync fake jira --json | jq .connector | lakesync connectors register -", "of a site that is made up"),
    )
)
def register(
    file: Annotated[Path, typer.Argument(help="JSON: name, type, settings, ingest; `-` is stdin.", allow_dash=True)],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Register a connector."""
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).post("/admin/connectors/{gateway}", read_json(file))
    output.facts(told, as_json=as_json)


@app.command(epilog=examples(("lakesync connectors unregister jira --yes", "rows that it brought stay")))
def unregister(
    name: Annotated[str, typer.Argument(help="The connector's name.", show_default=False)],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Forget a connector; what it brought stays."""
    from urllib.parse import quote

    from lakesync.cli.connection import connect

    output.confirm(f"Unregister the connector {name!r}?", yes=yes)
    told = connect(url, gateway, token_file, data).delete(f"/admin/connectors/{{gateway}}/{quote(name, safe='')}")
    output.facts(told, as_json=as_json)


@app.command(
    "test",
    epilog=examples(
        ("lakesync connectors test jira", "credentials, permissions, clock and a page"),
        ("lakesync connectors test jira --gateway shop --json", "one object a check; the exit code says how it ended"),
    ),
)
def check(
    name: Annotated[str, typer.Argument(help="The connector's name.", show_default=False)],
    gateway: Gateway = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Check a connector's credentials, permissions and clock, and read one page of each table.

    It asks from this machine, with the secrets that this machine can open; nothing is polled or changed.
    """
    from contextlib import closing

    from lakesync.cli.connection import which_gateway
    from lakesync.cli.store_access import opened_store
    from lakesync.connectors.probes import probes_of
    from lakesync.model.errors import LakeSyncError, NotFoundError

    config = settings(data)
    chosen = which_gateway(config, gateway)
    with opened_store(config) as store:
        registered = store.connectors(chosen) if chosen in store.gateways() else ()
        stored = next((each for each in registered if each.name == name), None)
    if stored is None:
        raise NotFoundError(f"gateway {chosen!r} has no connector {name!r}: `lakesync connectors list` names them")
    types = _types(config)
    opened = types.open(chosen, stored)
    kind = types.find(stored.type)
    assert kind is not None
    failed: list[LakeSyncError] = []
    with closing(kind.open_source(opened)) as source, _once():
        for probe in probes_of(source):
            try:
                said, code = probe.run(), None
            except LakeSyncError as error:
                failed.append(error)
                said, code = str(error), error.code
            _tell(probe.name, said, code, as_json=as_json)
            if code is not None and probe.name == "credentials":
                break
    if failed:
        raise typer.Exit(exit_codes.code_of(type(failed[0])) or exit_codes.ExitCode.FAILED)


@contextmanager
def _once() -> Iterator[None]:
    """Whoever waits for the answer is told at once what is wrong, rather than after some tries more."""
    import stamina

    stamina.set_active(False)
    try:
        yield
    finally:
        stamina.set_active(True)


def _tell(what: str, said: str, code: str | None, *, as_json: bool) -> None:
    if as_json:
        output.record({"check": what, "ok": code is None, "said": said, **({"code": code} if code else {})})
    elif code is None:
        print(f"ok    {what}: {said}")
    else:
        print(f"FAIL  {what}: {said}", file=sys.stderr)


def _types(config: Config) -> Connectors:
    """The types, with the key of the data folder where none is configured."""
    from pydantic import SecretStr

    from lakesync.cli.generated_secrets import kept
    from lakesync.connectors import Connectors

    key = kept(config.data_dir).get("secret_key")
    if config.secret_key is None and key:
        config = config.replace(secret_key=SecretStr(key))
    return Connectors.configured(config)
