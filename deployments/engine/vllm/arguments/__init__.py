"""Engine arguments, and defaults on CPUs."""
