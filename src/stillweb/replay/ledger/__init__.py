"""Ledgers: one entry for each answered request."""
