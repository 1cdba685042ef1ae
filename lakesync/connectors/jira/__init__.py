"""Jira Cloud connector: polls issues, comments and projects; creates issues, adds comments, changes statuses."""
