"""Certify that repeated replays give the same observations."""
