"""Client ids: an app's id is the `sub` of its token; an import for that user has an id made from it.

The feed never sends a client its own changes. So an import under the id of the user's app would never reach that app.
"""

from __future__ import annotations

_IMPORT = "import:"


def importer_of(sub: str) -> str:
    """Return the client id under which imports for a user are pushed, with a token of that user."""
    return _IMPORT + sub


def user_of(client_id: str) -> str:
    """Return the `sub` for which a client id pushes: the id itself, unless it belongs to imports."""
    return client_id.removeprefix(_IMPORT)


def is_importer(client_id: str) -> bool:
    """Return whether a client id belongs to imports. No token may have it as its `sub`."""
    return client_id.startswith(_IMPORT)
