"""Row states, encoded as in the golden table of merges."""

from lakesync.model.delta import jcs_raw


def spelled(state):
    """A `RowState` in the form of `vectors/merge.json`."""
    cells = {
        column: {"hlc": str(part.hlc), "clientId": part.client_id, "value": jcs_raw(value)}
        for part in state.live
        for column, value in part.columns.items()
    }
    return {
        "visible": state.visible,
        "tombstone": _stamp(state.tombstone),
        "inserted": _stamp(state.inserted),
        "cells": dict(sorted(cells.items())),
    }


def _stamp(stamp):
    return None if stamp is None else {"hlc": str(stamp[0]), "clientId": stamp[1]}
