"""Salesforce connector: polls accounts, contacts, opportunities and leads; creates and updates records."""
