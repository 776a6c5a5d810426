"""Parts of every process of a fleet, gateways and replicas alike."""
