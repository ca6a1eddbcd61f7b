"""Life cycle of one episode."""
