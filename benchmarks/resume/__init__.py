"""Whether answers survive their engines exactly, and what clients see of it."""
