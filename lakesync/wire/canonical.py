"""JSON texts as their JCS texts, a column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.model.delta import jcs_raw

if TYPE_CHECKING:
    import numpy.typing as npt

_CANONICAL = r'^(?:0|-?[1-9][0-9]{0,14}|true|false|null|"[^"\\\x00-\x1f]*")$'
"""Most values as they are pushed: their own JCS text."""


def canonical_texts(texts: pa.Array, doubtful: npt.NDArray[np.int64] | None = None) -> pa.Array:
    """JSON texts as their JCS texts.

    Args:
        texts: JSON values.
        doubtful: places of those that may be spelled otherwise; None: all.

    Raises:
        ValidationError: a value has no canonical form.
    """
    looked_at = texts if doubtful is None else texts.take(pa.array(doubtful))
    other = pc.invert(pc.match_substring_regex(looked_at, _CANONICAL))
    spelled = [jcs_raw(text) for text in looked_at.filter(other).cast(pa.binary()).to_pylist()]
    if not spelled:
        return texts
    found = pc.replace_with_mask(looked_at, other, pa.array(spelled, pa.string()))
    if doubtful is None:
        return found
    places = np.arange(len(texts))
    places[doubtful] = len(texts) + np.arange(len(doubtful))
    return pa.concat_arrays([texts, found]).take(pa.array(places))
