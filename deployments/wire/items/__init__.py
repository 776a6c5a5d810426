"""The items of a request's lists: which kinds engines read, and how they are completed."""
