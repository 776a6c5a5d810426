"""Budgets of tenants in Redis."""
