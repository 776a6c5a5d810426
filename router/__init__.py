"""Choice of the replica for a request: loads in, a ranked `Placement` out."""
