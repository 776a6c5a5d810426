"""What a fleet on one machine needs beside Ray Serve: Ray, Redis, Prometheus, their processes."""
