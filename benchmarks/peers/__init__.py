"""The same engines behind this router and behind others."""
