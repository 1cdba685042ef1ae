"""The summary of a failed check."""

from assets.checks import summary
from lakehouse.checks import DuplicateKey
from lakehouse.tables.audit import RowDifference


def test_a_summary_names_three_findings_and_counts_the_others():
    found = [DuplicateKey("nyc", f"row-{number}", 2) for number in range(5)]
    assert summary(found[:1]) == "nyc row-0"
    assert summary(found) == "nyc row-0, nyc row-1, nyc row-2 and 2 more"


def test_a_checks_summary_has_no_value_of_a_row():
    assert summary([RowDifference("nyc", "r", stored='{"title":"secret"}', merged="{}")]) == "nyc r"
