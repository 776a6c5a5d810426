"""Tests of one engine, which is theirs together: a package, for the scope of its fixture."""
