"""`lakesync explain`: why a client sees a row or does not, clause by clause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, claims_of

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync explain todos t1 --client bob", "with the claims of his last pull"),
        ("lakesync explain todos t1 --as sub=bob,team=blue", "with these"),
        ("""lakesync explain todos t1 --as '{"sub": "bob", "team": ["red", "blue"]}' --json""", "for a program"),
    )
)
def explain(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="The row's table.", show_default=False, autocompletion=completion.tables),
    ],
    row: Annotated[str, typer.Argument(metavar="ROW", help="The row's id.", show_default=False)],
    claims: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="CLAIMS", help="Claims: JSON, @FILE, or NAME=VALUE,NAME=VALUE.", show_default=False
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="The client; else the claims' sub.", show_default=False)
    ] = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Say why a client sees a row or does not, clause by clause.

    The verdict is absent, deleted, hidden, waiting (its next pull brings it) or delivered.
    """
    from lakesync.cli.connection import connect

    given = claims_of(claims)
    who = client or (given or {}).get("sub")
    if not isinstance(who, str):
        raise typer.BadParameter("whose view? Give --client ID, or a sub in --as")
    told = connect(url, gateway, token_file, data).get(
        "/admin/explain/{gateway}",
        clientId=who,
        table=table,
        rowId=row,
        claims=None if given is None else json.dumps(given),
    )
    if as_json:
        output.record(told)
        return
    print(f"{told['verdict']}: {told['reasons'][0] if told['reasons'] else ''}")
    for reason in told["reasons"][1:]:
        print(f"  {reason}")
    if told["row"]["visible"]:  # of any other row no clause holds, whatever the rules are
        _show(told)


def _show(told: dict[str, Any]) -> None:
    if told["buckets"]:
        print()
    output.records(
        _clauses(told),
        as_json=False,
        columns=("bucket", "clause", "row", "compared=compared with", "result"),
        none="the gateway has no rules: every client sees every row",
    )
    print()
    output.records(
        (
            {
                **each,
                "written": output.moment(int(each["hlc"]) >> 16),
                "touched": output.moment(each["touchedMs"]),
                "delta": each["deltaId"][:12],
            }
            for each in told["row"]["columns"]
        ),
        as_json=False,
        columns=("column", "clientId=whose value", "written", "touched=changed or contested", "delta"),
        none="no column of the row has a value",
    )


def _clauses(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One line a filter of each bucket; one for a bucket that has none or is about other tables."""
    for bucket in told["buckets"]:
        name = bucket["bucket"]
        if not bucket["coversTable"]:
            yield {"bucket": name, "clause": "tables", "row": None, "compared": None, "result": "not about this table"}
            continue
        if not bucket["filters"]:
            yield {"bucket": name, "clause": "(every row)", "row": None, "compared": None, "result": _met(True)}
        for each in bucket["filters"]:
            yield {
                "bucket": name,
                "clause": f"{each['column']} {each['op']} {each['value']}",
                "row": each["found"],
                "compared": ", ".join(each["operands"]) or "no such claim",
                "result": _met(each["holds"]),
            }


def _met(holds: bool) -> str:
    return "holds" if holds else "does not hold"
