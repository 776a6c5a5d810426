"""Parts of a fleet on one machine other than Ray Serve: Ray, Redis, Prometheus, and their
processes."""
