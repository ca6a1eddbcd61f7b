"""A cluster: several rollout servers (nodes) behind the address of one master."""
