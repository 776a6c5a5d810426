"""What every package may use: nothing in here knows what Antefix does."""
