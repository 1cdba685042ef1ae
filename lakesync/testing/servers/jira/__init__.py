"""A Jira Cloud site as its REST API v3 shows itself to one account.

Built from Atlassian's documentation of the platform's REST API v3 (issue search, comments, projects, permissions, rate
limiting): search that is behind what was written, tokens of pages that expire, no totals, limits of the rate.
"""

from lakesync.testing.servers.jira.api import JiraApi
from lakesync.testing.servers.jira.site import JiraSite, Limits

__all__ = ["JiraApi", "JiraSite", "Limits"]
