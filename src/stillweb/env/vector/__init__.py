"""Vectors of sessions on a pool of browsers, rollouts and forks."""
