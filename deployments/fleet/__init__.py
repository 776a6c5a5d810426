"""The fleet: what one YAML file says of gateways, Redis and pools of engines."""
