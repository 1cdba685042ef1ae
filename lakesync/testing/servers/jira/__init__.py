"""A fake Jira Cloud site with the REST API v3, as one account sees it. Tests and `lakesync fake` run it.

It follows Atlassian's documentation of the API (issue search, comments, projects, permissions, rate limits), also in
what makes polling hard: the search index lags behind changes, page tokens expire, and results have no total.
"""

from lakesync.testing.servers.jira.api import JiraApi
from lakesync.testing.servers.jira.site import JiraSite, Limits

__all__ = ["JiraApi", "JiraSite", "Limits"]
