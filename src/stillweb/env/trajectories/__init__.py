"""Trajectories and traces: write, read, replay, rescore."""
