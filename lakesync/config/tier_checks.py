"""The checks that moving old deltas between tiers loses none of them; `Config` calls them when settings are read.

A *backend* is an adapter (one database or object store), or is composed of other backends. *Tiers* are a hot and a cold
backend: old deltas (changes of rows) are copied to the cold one, read back there, and deleted from the hot one.
"""

from __future__ import annotations

from itertools import permutations

from lakesync.config.backends import Backends


def check_tiers(backends: Backends) -> None:
    """Check that no tiers delete deltas that they, or other tiers, must keep.

    Args:
        backends: sections that `check_backends` has accepted.

    Raises:
        ValueError: a check failed; the message names the setting and the remedy.
    """
    for name, tiers in backends.tiers.items():
        shared = backends.read_uris(tiers.hot) & backends.read_uris(tiers.cold)
        if shared:
            raise ValueError(
                f"tiers.{name}.cold leads to {_named(backends, shared)}, which the hot tier has too: deltas that move "
                "would be deleted there; name backends without a common adapter"
            )
        for part in sorted(backends.contents_of(tiers.cold) & backends.fan_out.keys()):
            raise ValueError(
                f"tiers.{name}.cold leads to the fan-out {part!r}, but deltas move to its primary only; "
                f"name {backends.fan_out[part].primary!r} instead"
            )
    for name, other in permutations(backends.tiers, 2):
        if name in backends.contents_of(other) or other in backends.contents_of(name):
            continue  # the outer tiers read through the inner ones
        shared = backends.read_uris(name) & backends.read_uris(backends.tiers[other].hot)
        if shared:
            raise ValueError(
                f"tiers.{name} and tiers.{other} both have {_named(backends, shared)}, from which tiers.{other} moves "
                f"old deltas: tiers.{name} would miss those; let one contain the other, or name another adapter"
            )


def _named(backends: Backends, uris: set[str]) -> str:
    """Return the names of the adapters with some URIs, as part of a sentence; a URI may contain a password."""
    names = sorted(name for name, uri in backends.adapters.items() if uri in uris)
    return f"the adapter {' or '.join(map(repr, names))}"
