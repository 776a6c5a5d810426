"""What both ends of a connection know: a gateway and the replicas it calls."""
