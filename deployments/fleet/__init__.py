"""The fleet: the content of one YAML file about gateways, Redis and pools of engines."""
