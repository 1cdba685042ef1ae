"""`PipelineStore` as messages: each method's arguments by name and its return value, as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from lakesync.model.errors import NotFoundError, ValidationError
from lakesync.staging.store import PipelineStore


class Method(NamedTuple):
    """One method's messages, typed by its signature."""

    arguments: type[msgspec.Struct]
    decode: Callable[[bytes], msgspec.Struct]
    """Made once, by one thread; see `lakesync.staging.decoding`."""
    answer: Any


@cache
def methods() -> dict[str, Method]:
    """Every method of `PipelineStore`, by its name."""
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
    """Call a method of `store` by its name, with the arguments in `body`; what it returned, as JSON.

    Raises:
        NotFoundError: `PipelineStore` has no such method.
        ValidationError: the arguments do not fit the method.
        LakeSyncError: whatever the method raised.
    """
    known = methods().get(method)
    if known is None:
        raise NotFoundError(f"staging has no method {method!r}: it has {', '.join(sorted(methods()))}")
    try:
        arguments = known.decode(body or b"{}")
    except msgspec.MsgspecError as exc:
        raise ValidationError(f"the arguments do not fit staging's {method}: {exc}") from None
    return msgspec.json.encode(getattr(store, method)(**msgspec.structs.asdict(arguments)))
