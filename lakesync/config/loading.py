"""`load`: reads and validates the configuration, and explains each error with the variable or line that causes it.

Every process of LakeSync calls it once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

import pydantic
from pydantic import BaseModel
from pydantic_settings import SettingsError

from lakesync.config.files import SECRETS, config_file, line_of, user_file
from lakesync.config.sections import DeclaredIssuer
from lakesync.config.settings import Config
from lakesync.model.errors import ConfigurationError


def load(overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the effective configuration.

    Args:
        overrides: settings that take precedence over `LAKESYNC_*` variables, which take precedence over files.

    Raises:
        ConfigurationError: a setting is unknown or invalid. The message names each such setting, the variable or line
            that set it, and the reason, but never the value of a secret.
    """
    try:
        return Config(**(overrides or {}))
    except pydantic.ValidationError as error:
        raise ConfigurationError("\n".join(_explain(problem, overrides or {}) for problem in error.errors())) from None
    except SettingsError as error:
        raise ConfigurationError(_explain_variable(str(error))) from None
    except pydantic.errors.PydanticUserError as error:  # pragma: no cover, a defect of the models
        raise ConfigurationError(str(error)) from error


def _explain_variable(message: str) -> str:
    """Explain the error of pydantic-settings for a variable of a section, list or table that is not JSON."""
    start = f"LAKESYNC_{message.partition(chr(34))[2].partition(chr(34))[0].upper()}"
    names = " or ".join(name for name in sorted(os.environ) if name == start or name.startswith(f"{start}_"))
    hint = "; the gateway that commands call is LAKESYNC_REMOTE_GATEWAY" if start == "LAKESYNC_GATEWAY" else ""
    return (
        f"{names} is not JSON. Set each setting of a section by its own variable, as LAKESYNC_GATEWAY_PORT{hint}; "
        'write a list as ["a"].'
    )


def _explain(problem: Mapping[str, Any], overrides: Mapping[str, Any]) -> str:
    """Explain one problem that pydantic found, without a value that may be a secret or contain one."""
    parts = [str(part) for part in problem["loc"]]
    if parts[:2] == ["connectors", "declared"]:
        del parts[1]  # in a file, connectors are keys of the section
    name, message = ".".join(parts), str(problem["msg"]).removeprefix("Value error, ")
    if not name:
        return f"{message}."
    source = _source(parts, overrides)
    if problem["type"] == "extra_forbidden":
        known = _siblings(parts[:-1])
        near = get_close_matches(parts[-1], known, 1)
        hint = f"did you mean {'.'.join([*parts[:-1], *near])}?" if near else f"known settings: {', '.join(known)}."
        return f"{name} is not a setting{source}; {hint}"
    if problem["type"] == "missing":
        return f"{name} is not set{source}, but it is required."
    if name in SECRETS or not isinstance(problem["input"], str | float | int | None):
        return f"{name}{source}: {message}."
    return f"{name} is {problem['input']!r}{source}: {message}."


def _source(parts: Sequence[str], overrides: Mapping[str, Any]) -> str:
    """Return, in parentheses, the variable or the line of a file that set a setting; empty for an override."""
    section, key = parts[0], ".".join(parts[1:2])
    override = overrides.get(section)
    if override is not None and (not isinstance(override, Mapping) or key in override):
        return ""
    for variable in (f"LAKESYNC_{section}_{key}".upper(), f"LAKESYNC_{section}".upper()):
        if variable in os.environ:
            return f" (the variable {variable})"
    for path in (config_file(), user_file()):
        line = line_of(path.read_text("utf-8"), parts) if path is not None else None
        if line is not None:
            return f" ({path}, line {line})"
    return ""


def _siblings(section: Sequence[str]) -> list[str]:
    """Return the names of a section's settings, or of the sections themselves for an empty name."""
    fields = Config.model_fields
    if not section:
        return list(fields)
    model = fields[section[0]].annotation if section[0] in fields else None
    if list(section[:2]) == ["gateway", "issuers"]:
        model = DeclaredIssuer
    kinds = [each for each in (model, *get_args(model)) if isinstance(each, type) and issubclass(each, BaseModel)]
    return [name for kind in kinds for name in kind.model_fields]
