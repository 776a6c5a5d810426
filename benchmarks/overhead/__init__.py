"""What Antefix adds to a request."""
