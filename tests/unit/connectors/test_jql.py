"""The fake Jira site reads queries like Jira."""

import pytest

from lakesync.connectors.query_text import balanced_condition
from lakesync.testing.servers.jira.jql import JqlError, parse
from lakesync.testing.servers.jira.site import Issue

ISSUE = Issue("1", "OPS", "OPS-1", created=5, updated=10, fields={})


@pytest.mark.parametrize(("jql", "matches"), [('"project" = OPS', True), ("'Project' = SUP", False)])
def test_a_fields_name_may_be_quoted(jql, matches):
    assert parse(jql).matches(ISSUE) is matches


@pytest.mark.parametrize("field", ["created", "updated"])
def test_an_invalid_time_is_reported_with_its_field(field):
    with pytest.raises(JqlError, match=f"Date value 'soon' for field '{field}' is invalid"):
        parse(f"{field} >= soon")


@pytest.mark.parametrize("text", ['summary ~ "a\\\nb"', "summary ~ a\\\nb"])
def test_a_backslash_may_escape_a_line_break(text):
    assert balanced_condition(text, "filter") == text
