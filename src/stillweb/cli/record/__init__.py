"""`stillweb record`."""
