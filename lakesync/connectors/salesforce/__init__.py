"""Salesforce: accounts, contacts, opportunities and leads, and records created and changed there."""

from lakesync.connectors.salesforce.source import SalesforceSource

__all__ = ["SalesforceSource"]
