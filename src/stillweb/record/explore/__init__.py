"""Explore a recorded site and record what its controls request."""
