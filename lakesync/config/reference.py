"""Generates docs/configuration.md from the pydantic models of the settings.

`python -m lakesync.config.reference` writes the page; a test checks that it is up to date. A setting's description is
the docstring below its field. A section's introduction is the docstring of its model.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from lakesync.config.sections import DeclaredConnector, DeclaredEnterRule, DeclaredIssuer
from lakesync.config.settings import Config

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
"""The generated page."""

_INTRODUCTION = """\
# Configuration

Every setting, with its type, default and meaning. This page is generated from the models: after a change run
`python -m lakesync.config.reference`.

Settings come from these sources; the first one that has a setting wins:

1. options of a command, such as `--port`
2. variables: `LAKESYNC_`, the section, an underscore and the setting, in capitals: `LAKESYNC_SPARK_MEMORY=4g`. A list
   or table is JSON: `LAKESYNC_GATEWAY_CORS_ORIGINS='["https://app.example.com"]'`. A misspelt name is an error
3. `lakesync.toml` in the current folder, or the file that `LAKESYNC_CONFIG` names; `LAKESYNC_CONFIG=` disables files
4. `~/.config/lakesync/lakesync.toml`

`lakesync config show --origin` prints each setting in effect and its source; `lakesync init` writes a commented file.

Secrets in a file are references: `"env:NAME"` reads a variable, `"file:PATH"` a file, relative to `lakesync.toml`. A
URI is a reference too if it contains credentials.
"""


def page() -> str:
    """Return the text of docs/configuration.md."""
    top, sections = [], []
    for name, field in Config.model_fields.items():
        model = _model(field.annotation)
        if model is None:
            top.append(name)
        else:
            sections.append(model)
    parts = [_INTRODUCTION, "## Top level\n", _table(Config, top)]
    for model in sections:
        parts.append(_section(model))
        if model.__name__ == "GatewaySection":
            parts += [_section(DeclaredIssuer), _section(DeclaredEnterRule, "`[[gateway.issuers.enter]]`")]
        if model.__name__ == "ConnectorsSection":
            parts.append(_section(DeclaredConnector))
    return "\n".join(parts)


def _section(model: type[BaseModel], heading: str | None = None) -> str:
    """Return the heading, introduction and table of a section.

    Args:
        model: the section's model. Its docstring has the form "heading: introduction".
        heading: the heading; None to take it from the docstring.
    """
    text = inspect.getdoc(model) or ""
    title, colon, introduction = text.partition(": ")
    if heading is None:
        heading, text = (title, introduction) if colon else (model.__name__, text)
    return f"## {heading}\n\n{_sentence(text)}\n\n{_table(model, list(model.model_fields))}"


def _table(model: type[BaseModel], names: list[str]) -> str:
    """Return a Markdown table of settings."""
    descriptions = dict(_descriptions(model))
    properties = model.model_json_schema(by_alias=False)["properties"]
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name in names:
        field = model.model_fields[name]
        if name == "declared":  # the tables below the section, such as `[connectors.NAME]`: they have their own section
            continue
        about = descriptions.get(name, "").replace("|", "\\|")
        kind = "secret" if _is_secret(field.annotation) else _kind(properties[name])
        lines.append(f"| `{field.alias or name}` | {kind} | {_default(field)} | {about} |")
    return "\n".join(lines) + "\n"


def _descriptions(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield `(field, docstring below it)` for each field of a model that has one. Python itself keeps only comments."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.target.id, " ".join(text.split())


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the type of a JSON schema, as the table shows it."""
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            items = schema["items"]
            if "enum" in items:
                return f"list of {_kind(items)}"
            return f"list of {_kind(items)}s" if "type" in items else "list of tables"
        case "integer" | "number":
            bounds = (
                ("at least", "minimum"),
                ("more than", "exclusiveMinimum"),
                ("at most", "maximum"),
                ("less than", "exclusiveMaximum"),
            )
            limits = [f"{words} {schema[key]:g}" for words, key in bounds if key in schema]
            if schema["type"] == "integer" and schema.get("exclusiveMinimum") == 0:
                limits = ["at least 1"]
            return ", ".join([str(schema["type"]), *limits])
        case "string":
            return "date" if schema.get("format") == "date" else "path" if schema.get("format") == "path" else "string"
        case "boolean":
            return "boolean"
    return "table"


def _default(field: Any) -> str:
    """Return a field's default, as it is written in TOML."""
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value is PydanticUndefined:
        return "unset"
    if isinstance(value, Path):
        return f'`"{value}"`' if value != Path() else '`""`'
    if isinstance(value, tuple):
        return f"`{json.dumps(list(value))}`"
    if isinstance(value, dict):
        return "none"
    return f"`{json.dumps(value)}`"


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, or of tables such as `[routes.NAME]`; None for a plain setting."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _is_secret(annotation: Any) -> bool:
    """Return whether a field's value is hidden: `SecretStr`, or that or None."""
    return SecretStr in (annotation, *get_args(annotation))


def _sentence(text: str) -> str:
    """Return a text with a capital at the beginning."""
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
