"""What Ray Serve runs: a folder for each process, and what they share."""
