"""Leases of sessions: the table of leases, their queue, and the manager that grants and ends them."""
