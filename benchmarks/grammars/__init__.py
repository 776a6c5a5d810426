"""What a tenant's grammars cost another tenant."""
