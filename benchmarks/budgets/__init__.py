"""Budgets of tenants under a burst, at a steady rate, and while gateways and Redis are killed."""
