"""What the SLO file generates: rules, alerts, runbooks."""
