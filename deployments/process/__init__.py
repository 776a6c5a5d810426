"""What every process of a fleet does, gateways and replicas alike."""
