"""`lakesync explain`: explains why a client sees a row or does not.

The gateway computes the explanation from the sync rules, the client's claims (what its token says about the user), and
what it has sent to the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, RowId, RowTable, TokenFile, Url, parse_claims

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync explain todos t1 --client bob", "with the claims of Bob's last pull"),
        ("lakesync explain todos t1 --as sub=bob,team=blue", "with other claims"),
        ("""lakesync explain todos t1 --as '{"sub": "bob", "team": ["red", "blue"]}' --json""", "claims as JSON"),
    )
)
def explain(
    table: RowTable,
    row: RowId,
    claims: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="CLAIMS", help="Claims: JSON, @FILE, or NAME=VALUE,NAME=VALUE.", show_default=False
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="The client; default: sub of --as.", show_default=False)
    ] = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Explain why a client sees a row or does not.

    Shows each clause of the sync rules. The verdict is absent, deleted, hidden, waiting (the next pull returns the
    row) or delivered.
    """
    from lakesync.cli.connection import connect

    parsed_claims = parse_claims(claims)
    client_id = client or (parsed_claims or {}).get("sub")
    if not isinstance(client_id, str):
        raise typer.BadParameter("no client is given; give --client ID, or a sub in --as")
    explanation = connect(url, gateway, token_file, data).get(
        "/admin/explain/{gateway}",
        clientId=client_id,
        table=table,
        rowId=row,
        claims=None if parsed_claims is None else json.dumps(parsed_claims),
    )
    if as_json:
        output.record(explanation)
        return
    print(f"{explanation['verdict']}: {explanation['reasons'][0] if explanation['reasons'] else ''}")
    for reason in explanation["reasons"][1:]:
        print(f"  {reason}")
    if explanation["row"]["visible"]:  # no clause matches a row that was deleted or never existed
        _print_details(explanation)


def _print_details(explanation: dict[str, Any]) -> None:
    """Print a table of the rules' clauses, and one of the row's columns with the deltas that wrote them."""
    if explanation["buckets"]:
        print()
    output.records(
        _clauses(explanation),
        as_json=False,
        columns=("bucket", "clause", "row", "compared=compared with", "result"),
        none="the gateway has no sync rules, so every client sees every row",
    )
    print()
    output.records(
        (
            {
                **each,
                "written": output.utc_time(int(each["hlc"]) >> 16),
                "touched": output.utc_time(each["touchedMs"]),
                "delta": each["deltaId"][:12],
            }
            for each in explanation["row"]["columns"]
        ),
        as_json=False,
        columns=("column", "clientId=written by", "written", "touched=changed or contested", "delta"),
        none="the row has no values",
    )


def _clauses(explanation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each filter of each bucket, and one for a bucket without filters or about other tables.

    A bucket is a part of the sync rules: tables, and filters that compare columns with claims.
    """
    for bucket in explanation["buckets"]:
        name = bucket["bucket"]
        if not bucket["coversTable"]:
            yield {"bucket": name, "clause": "tables", "row": None, "compared": None, "result": "not about this table"}
            continue
        if not bucket["filters"]:
            yield {"bucket": name, "clause": "(every row)", "row": None, "compared": None, "result": _result(True)}
        for each in bucket["filters"]:
            yield {
                "bucket": name,
                "clause": f"{each['column']} {each['op']} {each['value']}",
                "row": each["found"],
                "compared": ", ".join(each["operands"]) or "no such claim",
                "result": _result(each["holds"]),
            }


def _result(matches: bool) -> str:
    """Return the text for whether a clause matches."""
    return "matches" if matches else "does not match"
