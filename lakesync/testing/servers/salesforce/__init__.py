"""A fake Salesforce organisation with REST API and Bulk API 2.0, as one connected app sees it.

Tests and `lakesync fake` run it. It follows Salesforce's documentation of the REST API, SOQL, OAuth flows and the
Bulk API 2.0, also in what makes polling hard: query locators expire, only `queryAll` returns deleted records, sessions
expire, and calls per day are limited.
"""

from lakesync.testing.servers.salesforce.api import SalesforceApi
from lakesync.testing.servers.salesforce.org import Record, SalesforceOrg

__all__ = ["Record", "SalesforceApi", "SalesforceOrg"]
