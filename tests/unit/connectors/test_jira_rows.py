"""Jira's objects as rows: absent fields are null, an absent id is an error."""

import pytest

from lakesync.connectors.jira.source import comment_row, issue_row, project_row


def test_absent_fields_of_an_issue_become_null():
    issue = {"id": "10", "key": "SUP-1", "fields": {"summary": "It broke", "status": None, "labels": ["a"]}}
    columns = issue_row(issue).columns
    assert (columns["jira_id"], columns["key"], columns["summary"]) == ("10", "SUP-1", "It broke")
    assert (columns["status"], columns["assignee_name"], columns["labels"]) == (None, None, '["a"]')


@pytest.mark.parametrize(
    "convert",
    [
        lambda: issue_row({"key": "SUP-1", "fields": {}}),
        lambda: issue_row({"id": "10", "key": "SUP-1"}),
        lambda: comment_row("SUP-1", {"body": {}}),
        lambda: project_row({"key": "SUP"}),
    ],
    ids=["issue without id", "issue without fields", "comment without id", "project without id"],
)
def test_an_object_without_its_id_is_not_converted(convert):
    with pytest.raises(KeyError):
        convert()


def test_a_comment_belongs_to_the_requested_issue():
    row = comment_row("SUP-1", {"id": "7", "issue_key": "OPS-9", "author": {"displayName": "Ada"}})
    assert (row.row_id, row.columns["issue_key"], row.columns["author_name"]) == ("SUP-1:7", "SUP-1", "Ada")
