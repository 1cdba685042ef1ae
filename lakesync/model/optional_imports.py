"""Packages that come with an extra: imported late, and named by who needs them where they are absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakesync.model.errors import ConfigurationError


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """What is imported inside of the block comes with an extra.

    Args:
        name: of the extra.
        needs: who needs what, as in "Postgres needs its driver".

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{needs}: pip install 'lakesync[{name}]'") from error
