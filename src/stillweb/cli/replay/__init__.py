"""`stillweb replay`."""
