"""Admission, queues and overflow of one pool."""
