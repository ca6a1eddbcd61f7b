"""Compare recorded pages with replayed ones."""
