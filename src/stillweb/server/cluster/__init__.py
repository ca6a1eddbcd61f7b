"""Several rollout servers behind one address."""
