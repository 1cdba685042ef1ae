"""Turns a missing optional package into an error that says how to install it.

An *extra* is an optional part of the installation, for example a database's driver. Modules that need one write
`with extra(...):` around the import.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakesync.model.errors import ConfigurationError


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Turn an ImportError in the `with` block into an error that names the extra.

    Args:
        name: the extra's name, as in `pip install 'lakesync[NAME]'`.
        needs: what needs the package, as the beginning of the message, for example "Postgres needs its driver".

    Raises:
        ConfigurationError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{needs}: pip install 'lakesync[{name}]'") from error
