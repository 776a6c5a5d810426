"""One index, shared by several gateways."""
