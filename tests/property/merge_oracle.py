"""The merge rules M1 to M3, evaluated over the whole set of deltas; shares no code with the merge."""

import json


def _text(raw):
    """Canonical text for the values that the histories use: sorted keys, no spaces, integers."""
    value = json.loads(bytes(raw))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _spell(stamp):
    return None if stamp is None else {"hlc": str(stamp[0]), "clientId": stamp[1]}


def _order(stamp):
    return stamp[0], [ord(char) for char in stamp[1]]


def merged(deltas, text=_text):
    """The state, encoded as in the golden table."""
    deaths = [delta.stamp for delta in deltas if delta.op == "DELETE"]
    tombstone = max(deaths, key=_order, default=None)
    alive = [delta for delta in deltas if delta.op != "DELETE"]
    if tombstone is not None:
        alive = [delta for delta in alive if _order(delta.stamp) > _order(tombstone)]
    inserted = max((delta.stamp for delta in alive if delta.op == "INSERT"), key=_order, default=None)
    candidates = {}
    for delta in alive:
        for cell in delta.columns:
            candidates.setdefault(cell.column, []).append((delta.stamp, text(cell.value)))
    cells = {}
    for column, given in candidates.items():
        stamp, value = max(given, key=lambda item: (_order(item[0]), [ord(char) for char in item[1]]))
        cells[column] = {"hlc": str(stamp[0]), "clientId": stamp[1], "value": value}
    return {
        "visible": bool(cells) or inserted is not None,
        "tombstone": _spell(tombstone),
        "inserted": _spell(inserted),
        "cells": dict(sorted(cells.items())),
    }
