"""Settings of every test."""

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("patient")
