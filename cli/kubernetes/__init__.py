"""`antefix k8s`."""
