"""Jira Cloud: issues, comments and projects, and what can be done to issues."""
