"""Resumes an answer that another engine started."""
