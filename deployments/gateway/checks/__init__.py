"""What is refused before a request is scheduled."""
