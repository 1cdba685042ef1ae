"""Converts JSON values to their canonical (JCS) texts, a column at a time in Arrow.

`wire.history` and `wire.fast_decode` call it; both produce columns of the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakesync.model.delta import jcs_raw

if TYPE_CHECKING:
    import numpy.typing as npt

_CANONICAL = r'^(?:0|-?[1-9][0-9]{0,14}|true|false|null|"[^"\\\x00-\x1f]*")$'
"""Most values as they are pushed: they are canonical already."""


def canonical_texts(texts: pa.Array, doubtful: npt.NDArray[np.int64] | None = None) -> pa.Array:
    """Return the canonical texts of JSON values.

    Args:
        texts: JSON values.
        doubtful: positions of those that may not be canonical; None for all.

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
