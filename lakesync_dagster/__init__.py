"""The Dagster code location: `lakesync_dagster.definitions`."""

import warnings

from dagster import BetaWarning, PreviewWarning

# Dagster warns of features that may still change; the tests show when one does.
warnings.filterwarnings("ignore", category=BetaWarning)
warnings.filterwarnings("ignore", category=PreviewWarning)
