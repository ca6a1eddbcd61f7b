"""Behaviors that a recorded page runs after its baseline."""
