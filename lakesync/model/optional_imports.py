"""Imports packages of an extra, with an error that says how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakesync.model.errors import ConfigurationError


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Turn an ImportError in the `with` block into an error that names the extra.

    Args:
        name: of the extra.
        needs: what needs it, as in "Postgres needs its driver".

    Raises:
        ConfigurationError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{needs}: pip install 'lakesync[{name}]'") from error
