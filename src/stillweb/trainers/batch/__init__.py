"""The batch runner behind `stillweb rollout`."""
