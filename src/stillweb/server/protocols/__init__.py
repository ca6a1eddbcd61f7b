"""Protocols of the rollout server: native, Omniboxes, OpenEnv, verl-tool."""
