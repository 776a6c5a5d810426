"""Settings of every test."""

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong. Laws that want a share of these examples take
# `settings().max_examples // n`, so that `make fuzz` gives them more too.
settings.register_profile(
    "same",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=50,
    derandomize=True,
)
# Of Hypothesis's own default, which does not look at CI: random, and what failed is tried again.
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=1000,
    print_blob=True,
)
settings.load_profile("same")
