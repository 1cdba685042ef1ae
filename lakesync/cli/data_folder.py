"""The files that `lakesync up` writes into the data folder for other commands: `up.json` and `secrets.json`.

The data folder (`data_dir`, `--data`) has everything that a project keeps. `up.json` exists while `lakesync up` runs,
and has the addresses of its services. `secrets.json` has the secrets that were generated because they are not
configured. `lakesync up` creates it by `ensure_secrets`. `lakesync gateway` uses them, and other commands on the same
machine read both files, for example to sign a token for the running gateway.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lakesync.model.errors import ConfigurationError
from lakesync.model.secrets import replace_private_file

if TYPE_CHECKING:
    from lakesync.config import Config

_SECRET_NAMES = ("jwt_secret", "service_token", "secret_key", "spark_token")
"""The generated secrets: for clients' tokens, internal routes, stored connector settings, and Spark Connect."""
_SECRETS_FILE = "secrets.json"
"""Name of the file with the generated secrets, in the data folder."""


def running_service(config: Config, service: str) -> dict[str, Any]:
    """Return what `up.json` says about a service of a running `lakesync up`.

    Args:
        config: the settings, which name the data folder.
        service: `gateway` or `dagster`, whose entry has its `url`; or `spark`, with `remote`, `ui_url` and `token`.

    Returns:
        The entry; empty if no `lakesync up` runs on the data folder, or it does not start the service.
    """
    try:
        content = json.loads((config.data_dir / "up.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    entry: dict[str, Any] = content.get(service) or {}
    return entry


def read_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder by name; empty if none were generated.

    Raises:
        ConfigurationError: the file is damaged.
    """
    path = folder / _SECRETS_FILE
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} contains no secrets: {error}. Restore it from a backup: the stored settings of connectors cannot "
            "be read without its secret_key"
        ) from None


def with_secrets(config: Config, known: Mapping[str, str]) -> Config:
    """Return the settings with generated secrets in place of missing ones, except that of Spark.

    Args:
        config: the settings.
        known: the secrets in the data folder by name.
    """
    from pydantic import SecretStr

    missing = (name for name in _SECRET_NAMES if name in known and not getattr(config, name, known[name]))
    return config.replace(**{name: SecretStr(known[name]) for name in missing})


def with_running_services(config: Config) -> Config:
    """Complete settings with the services of a running `lakesync up`, and with the secrets in the data folder.

    Settings that are configured stay.

    Raises:
        ConfigurationError: the file of the secrets is damaged.
    """
    from pydantic import SecretStr

    gateway_url = config.gateway.url or running_service(config, "gateway").get("url")
    running_spark = {} if config.spark.remote else running_service(config, "spark")
    spark = {"remote": running_spark["remote"], "token": SecretStr(running_spark["token"])} if running_spark else {}
    completed = with_secrets(config, read_secrets(config.data_dir))
    return completed.replace(gateway={"url": gateway_url}, spark=spark)


def ensure_secrets(folder: Path) -> dict[str, str]:
    """Return the secrets in a data folder by name, after generating those that are missing.

    Raises:
        ConfigurationError: the file is damaged.
        OSError: it cannot be written.
    """
    known = read_secrets(folder)
    missing = {name: secrets.token_hex(32) for name in _SECRET_NAMES if not known.get(name)}
    if missing:
        known |= missing
        replace_private_file(folder / _SECRETS_FILE, msgspec.json.encode(known))
    return known
