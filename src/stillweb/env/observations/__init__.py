"""Observations of the active page."""
