"""The tables that the connectors to applications fill. All columns are strings; objects are JSON text."""

from __future__ import annotations

from lakesync.model.schema import Column, TableSchema


def _table(name: str, columns: str, **references: str) -> TableSchema:
    return TableSchema(name, tuple(Column(each, "string", references.get(each)) for each in columns.split()))


JIRA = (
    _table(
        "jira_issues",
        "jira_id key summary description status priority issue_type assignee_name assignee_email reporter_name"
        " reporter_email labels project_key project_name created updated",
        project_key="jira_projects.key",
    ),
    _table(
        "jira_comments",
        "jira_id issue_key body author_name author_email created updated",
        issue_key="jira_issues.key",
    ),
    _table("jira_projects", "jira_id key name project_type lead_name"),
)
"""Row ids: an issue's and a project's key; a comment's is `KEY:id`."""

JIRA_SWITCHES = {"jira_comments": "includeComments", "jira_projects": "includeProjects"}
"""By table, the setting that says whether it is polled; without one it always is."""

SALESFORCE = (
    _table(
        "sf_accounts",
        "sf_id name type industry website phone billing_city billing_state billing_country annual_revenue"
        " number_of_employees owner_name created_date last_modified_date",
    ),
    _table(
        "sf_contacts",
        "sf_id first_name last_name email phone title account_id account_name mailing_city mailing_state"
        " mailing_country owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    _table(
        "sf_opportunities",
        "sf_id name stage_name amount close_date probability account_id account_name type lead_source is_closed is_won"
        " owner_name created_date last_modified_date",
        account_id="sf_accounts.sf_id",
    ),
    _table(
        "sf_leads",
        "sf_id first_name last_name company email phone title status lead_source is_converted converted_account_id"
        " converted_contact_id converted_opportunity_id owner_name created_date last_modified_date",
        converted_account_id="sf_accounts.sf_id",
        converted_contact_id="sf_contacts.sf_id",
        converted_opportunity_id="sf_opportunities.sf_id",
    ),
)
"""Row id: the record's Id."""

SALESFORCE_SWITCHES = {
    "sf_accounts": "includeAccounts",
    "sf_contacts": "includeContacts",
    "sf_opportunities": "includeOpportunities",
    "sf_leads": "includeLeads",
}
"""As JIRA_SWITCHES."""
