"""The sentences that explain why a value does not fit a JSON Schema."""

import pytest

from lakesync.model.errors import ConfigurationError
from lakesync.model.json_schema import JsonSchema

OBJECT = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        ({**OBJECT, "properties": {"a": {}, "b": {}}}, {"c": 1}, "params has no field 'c'; its fields are a, b"),
        (
            {**OBJECT, "properties": {"a": {}}, "patternProperties": {"^x-": {}}},
            {"a": 1, "x-ok": 2, "c": 3},
            "params has no field 'c'; its fields are a, those that match ^x-",
        ),
        (OBJECT, {"c": 1}, "params has no field 'c'; it must be empty"),
        (False, {}, "params has a value where its schema allows none"),
        ({"properties": {"a": False}}, {"a": 1}, "params has a value where its schema allows none"),
        ({"required": ["a", "b"]}, {"b": 1}, "params lacks 'a'"),
        ({"items": {"type": ["string", "null"]}}, [1], "params[0] must be of type string or null"),
        ({"minLength": 1}, "", "params must not be empty"),
        ({"maxLength": 1}, "ab", "params must satisfy maxLength 1"),
        (
            {"multipleOf": 0.5},
            10**400,
            "params has a number that is too large to be checked by multipleOf",
        ),
        ({"patternProperties": {"^x-": {"const": 1}}}, {"x-a": 2}, "params['x-a'] must be 1"),
    ],
)
def test_a_violation_is_one_sentence(schema, value, sentence):
    assert JsonSchema(schema, "a test").violation(value, "params") == sentence


def test_a_schema_of_draft_3_is_rejected():
    schema = {"$schema": "http://json-schema.org/draft-03/schema#", "properties": {"a": {"required": True}}}
    with pytest.raises(ConfigurationError, match="of a test is of draft 3; write it for draft 4"):
        JsonSchema(schema, "a test")


def test_a_long_list_of_fields_is_truncated_with_a_mark():
    schema = {**OBJECT, "properties": {f"field_{number}": {} for number in range(50)}}
    sentence = JsonSchema(schema, "a test").violation({"c": 1}, "params")
    assert (len(sentence), sentence[-1]) == (200, "…")
