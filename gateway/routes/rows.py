"""The rows of a table as they are, for an admin: what rules are tried on."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import bodies
from gateway.admission import admit
from gateway.forms import ID, IDENTIFIER
from gateway.operations import Operation, Parameter
from gateway.services import Services
from gateway.waiting import outcome
from lakesync.model.errors import ValidationError
from lakesync.model.schema import is_identifier
from lakesync.model.validation import check_id

MAX_ROWS = 10_000
_DEFAULT = 1000


class HeldRow(msgspec.Struct, frozen=True, rename="camel"):
    """A visible row with its merged values."""

    row_id: str
    arrival_hlc: int
    """Of its latest change."""
    values: dict[str, msgspec.Raw]


class HeldRows(msgspec.Struct, frozen=True, rename="camel"):
    """Rows in order of their ids, and from where to go on."""

    rows: list[HeldRow]
    next: str | None
    """`after` of the next request; null at the end."""


async def rows(request: Request) -> Response:
    """A page of a table's rows, whoever may see them."""
    caller = await admit(request, admin=True)
    table = request.query_params.get("table", "")
    if not is_identifier(table):
        raise ValidationError(f"table {table!r} is no identifier: name a table as pushes do")
    limit = _limit(request.query_params.get("limit"))
    given = request.query_params.get("after")
    fault = check_id("after", given) if given is not None else None
    if fault is not None:
        raise ValidationError(fault)
    after = (table, given or "")
    store = Services.of(request).engine.home(table)
    found = await outcome(store.submit(caller.gateway.gateway_id, lambda commit: commit.scan_rows(after, limit)))
    of_table = [row for row in found if row.table == table]
    visible = [HeldRow(row.row_id, row.arrival, row.state.values()) for row in of_table if row.state.visible]
    more = len(found) == limit == len(of_table)
    return bodies.json_response(HeldRows(visible, of_table[-1].row_id if more else None))


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_ROWS):
        raise ValidationError(f"limit is {text!r}, it must be from 1 to {MAX_ROWS}")
    return int(text)


OPERATIONS = (
    Operation(
        "GET",
        "/admin/rows/{gateway}",
        rows,
        "Read the rows of a table, whoever may see them",
        access="admin",
        parameters=(
            Parameter("table", "The table", IDENTIFIER, required=True, example="todos"),
            Parameter("after", "Rows whose ids come after this one", ID),
            Parameter(
                "limit",
                "Most rows to look at; those that are deleted are left out",
                {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": _DEFAULT},
            ),
        ),
        answer=HeldRows,
        errors=(ValidationError,),
    ),
)
