"""A fleet without engines: traces played by the code that decides in a real fleet."""
