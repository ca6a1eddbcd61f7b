"""The native replay server."""
