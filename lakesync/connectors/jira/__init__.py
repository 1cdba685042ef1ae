"""Jira Cloud: issues, comments and projects, and what can be done to issues."""

from lakesync.connectors.jira.source import JiraSource

__all__ = ["JiraSource"]
