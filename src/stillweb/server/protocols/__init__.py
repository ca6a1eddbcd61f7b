"""The protocols of the rollout server: its native API, WebGym's Omniboxes, OpenEnv and verl-tool."""
