"""Viewer of trajectories: a web page over a folder of episodes, and its single-file export."""
