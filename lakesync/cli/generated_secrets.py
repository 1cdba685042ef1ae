"""The secrets that `lakesync up` makes where nobody set any: the same at each start, readable by their owner."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

NAMES = ("jwt_secret", "service_token", "secret_key", "spark_token")


def kept(folder: Path) -> dict[str, str]:
    """Those of a data folder; empty where none were made."""
    path = folder / "secrets.json"
    found: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def kept_or_made(folder: Path) -> dict[str, str]:
    """Those of a data folder, made now where they are missing."""
    found = kept(folder)
    complete = {name: found.get(name) or secrets.token_hex(32) for name in NAMES}
    if complete != found:
        descriptor = os.open(folder / "secrets.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(complete, file)
    return complete
