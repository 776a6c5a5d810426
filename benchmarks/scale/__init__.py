"""A fleet of up to 1,000 replicas, on simulated engines and a real Redis."""
