"""A Salesforce organisation as its REST API and its Bulk API 2.0 show themselves to one connected app.

Built from Salesforce's documentation of the REST API, SOQL, OAuth flows and the Bulk API 2.0: cursors that expire,
deleted records that `queryAll` alone shows, sessions that end, a daily budget of calls.
"""

from lakesync.testing.servers.salesforce.api import SalesforceApi
from lakesync.testing.servers.salesforce.org import Record, SalesforceOrg

__all__ = ["Record", "SalesforceApi", "SalesforceOrg"]
