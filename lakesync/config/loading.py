"""`load` reads the configuration, and explains each error with the variable or line that causes it.

Commands, the gateway server, Dagster's code location and notebooks call it when they start.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

import pydantic
from pydantic import BaseModel
from pydantic_settings import SettingsError

from lakesync.config.files import SECRETS, config_file, line_of, user_file
from lakesync.config.sections import DeclaredConnector, DeclaredIssuer
from lakesync.config.settings import PREFIX, Config
from lakesync.model.errors import ConfigurationError

_REFERENCE = re.compile(r"env:([\w*?{}]+)")
"""A reference to a variable, in a file or in a variable that is JSON; or a pattern of references, as in
`connectors.allowed_references`."""


def load(overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the effective configuration.

    Args:
        overrides: settings that take precedence over `LAKESYNC_*` variables, which take precedence over files.

    Raises:
        ConfigurationError: a setting is unknown or invalid. The message names each such setting, the variable or line
            that set it, and the reason, but never the value of a secret. A variable `LAKESYNC_…` of an unknown section
            is an error only if it resembles a setting, because others may use such names: in Kubernetes, a service
            `lakesync` sets `LAKESYNC_SERVICE_HOST`.
    """
    problems = []
    try:
        config = Config(**(overrides or {}))
    except pydantic.ValidationError as error:
        problems += [_explain(problem, overrides or {}) for problem in error.errors()]
    except SettingsError as error:
        problems.append(_explain_variable(str(error)))
    except pydantic.errors.PydanticUserError as error:  # pragma: no cover, a defect of the models
        raise ConfigurationError(str(error)) from error
    problems += _misspelt_variables()
    if problems:
        raise ConfigurationError("\n".join(problems))
    return config


def _misspelt_variables() -> list[str]:
    """Return an error for each variable that is no setting, but whose name is like a setting's.

    Pydantic reports a misspelt setting of a section, but ignores variables that name no section. Variables to which the
    settings refer (`env:NAME`) are no errors.
    """
    known, sections, errors = list(Config.model_fields), [], []
    for name, field in Config.model_fields.items():
        if get_origin(field.annotation) is dict:
            sections.append(f"{name}_")
        elif settings := _settings_in([name]):
            sections.append(f"{name}_")
            known += [f"{name}_{key}" for key in settings]
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or name in known or name.startswith(tuple(sections)):
            continue
        near = get_close_matches(name, (each for each in known if each.count("_") == name.count("_")), 1, 0.75)
        if near and not _is_referred_to(variable):
            errors.append(f"{variable} is not a setting; did you mean {PREFIX}{near[0].upper()}?")
    return errors


def _is_referred_to(variable: str) -> bool:
    """Return whether a setting, in a file or a variable, refers to a variable.

    A pattern in `connectors.allowed_references`, which allows connectors to refer to the variable, counts too.
    """
    texts = [path.read_text("utf-8", "replace") for path in (config_file(), user_file()) if path is not None]
    texts += [value for name, value in os.environ.items() if name.startswith(PREFIX)]
    patterns = (match[1].replace("{gateway}", "*") for text in texts for match in _REFERENCE.finditer(text))
    return any(fnmatch.fnmatchcase(variable, pattern) for pattern in patterns)


def _explain_variable(message: str) -> str:
    """Explain the error of pydantic-settings for a variable of a section, list or table that is not JSON."""
    field = message.partition('"')[2].partition('"')[0]  # the message has the field's name in quotes
    start = f"LAKESYNC_{field.upper()}"
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
    if problem["type"] == "tuple_type":
        message = 'it must be a list, as ["a"]'
    if problem["type"] == "extra_forbidden":
        known = _settings_in(parts[:-1])
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


def _settings_in(section: Sequence[str]) -> list[str]:
    """Return the names of a section's settings; those of the top level, sections included, for an empty name."""
    fields = Config.model_fields
    if not section:
        return list(fields)
    model = fields[section[0]].annotation if section[0] in fields else None
    if list(section[:2]) == ["gateway", "issuers"]:
        model = DeclaredIssuer
    elif section[0] == "connectors" and len(section) > 1:
        model = DeclaredConnector
    kinds = [each for each in (model, *get_args(model)) if isinstance(each, type) and issubclass(each, BaseModel)]
    return [field.alias or name for kind in kinds for name, field in kind.model_fields.items()]
