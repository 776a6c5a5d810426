"""How a fleet file is read, checked and explained; `deployments.fleet` is what it says."""
