"""A fleet that is offered three times what it can serve."""
