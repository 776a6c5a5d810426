"""Load of benchmarks, and what its clients receive."""
