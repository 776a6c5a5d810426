"""What Ray Serve runs, and how an engineer runs it: gateway, engines, fleet file, command line."""
