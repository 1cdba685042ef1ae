"""`lakesync connectors test`: whether a registered connector would work, in words."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import ending, output
from lakesync.cli.options import Data, Gateway, Json, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.connectors import Connectors


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

    from lakesync.cli.erase import opened_store
    from lakesync.cli.remote import which_gateway
    from lakesync.connectors.probing import probes_of
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
                said, code = probe.ask(), None
            except LakeSyncError as error:
                failed.append(error)
                said, code = str(error), error.code
            _tell(probe.what, said, code, as_json=as_json)
            if code is not None and probe.what == "credentials":
                break
    if failed:
        raise typer.Exit(ending.code_of(type(failed[0])) or ending.ExitCode.FAILED)


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

    from lakesync.cli.secrets import kept
    from lakesync.connectors import Connectors

    key = kept(config.data_dir).get("secret_key")
    if config.secret_key is None and key:
        config = config.replace(secret_key=SecretStr(key))
    return Connectors.configured(config)
