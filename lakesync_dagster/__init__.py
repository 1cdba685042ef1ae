"""The Dagster code location: `lakesync_dagster.definitions`."""

import warnings

from dagster import BetaWarning, PreviewWarning

# Dagster's own announcements of features that it still shapes; our tests tell when one of them changes.
warnings.filterwarnings("ignore", category=BetaWarning)
warnings.filterwarnings("ignore", category=PreviewWarning)
