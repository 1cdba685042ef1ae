"""Salesforce: accounts, contacts, opportunities and leads, and records created and changed there."""
