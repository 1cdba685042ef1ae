"""`pytest tests/property --hypothesis-profile soak` looks much longer for a history that breaks a law."""

from hypothesis import HealthCheck, settings

settings.register_profile("soak", max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
