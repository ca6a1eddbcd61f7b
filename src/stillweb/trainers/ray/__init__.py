"""Rollouts on a Ray cluster: a pool of worker actors, and an iterator over episodes."""
