"""One ingress process: the OpenAI API, placement, admission, the relay to engines."""
