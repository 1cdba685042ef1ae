"""Encodes the methods of `PipelineStore` as JSON messages, and calls them by name.

`RemoteStore` sends the messages; the gateway's internal route passes them to `dispatch`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from lakesync.model.errors import NotFoundError, ValidationError
from lakesync.staging.store import PipelineStore


class Method(NamedTuple):
    """The message types of one method."""

    arguments: type[msgspec.Struct]
    decode: Callable[[bytes], msgspec.Struct]
    """Created once, by one thread; see `lakesync.staging.decoding`."""
    answer: Any


@cache
def methods() -> dict[str, Method]:
    """Return every method of `PipelineStore`, by name."""
    return {name: _typed(name) for name in vars(PipelineStore) if not name.startswith("_")}


def _typed(name: str) -> Method:
    function = getattr(PipelineStore, name)
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields = [
        (each.name, hints[each.name], msgspec.NODEFAULT if each.default is each.empty else each.default)
        for each in parameters
    ]
    arguments = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True)
    return Method(arguments, msgspec.json.Decoder(arguments).decode, hints["return"])


def dispatch(store: PipelineStore, method: str, body: bytes) -> bytes:
    """Call a method of `store` by name, and return its result as JSON.

    Args:
        store: the store.
        method: name of the method.
        body: its arguments, as a JSON object.

    Raises:
        NotFoundError: `PipelineStore` has no such method.
        ValidationError: the arguments do not fit the method.
        LakeSyncError: an error that the method raised.
    """
    known = methods().get(method)
    if known is None:
        raise NotFoundError(f"staging has no method {method!r}: it has {', '.join(sorted(methods()))}")
    try:
        arguments = known.decode(body or b"{}")
    except msgspec.MsgspecError as exc:
        raise ValidationError(f"the arguments do not fit staging's {method}: {exc}") from None
    return msgspec.json.encode(getattr(store, method)(**msgspec.structs.asdict(arguments)))
