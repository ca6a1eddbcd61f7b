"""Leases of sessions, and the queue for them."""
