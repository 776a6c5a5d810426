"""A spike, with a warm replica and without."""
