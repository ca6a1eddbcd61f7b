"""`stillweb collections`."""
