"""What trainers call: the batch runner, agents, and adapters to their frameworks."""
