"""Rollouts on a Ray cluster."""
