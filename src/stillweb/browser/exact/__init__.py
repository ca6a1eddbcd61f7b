"""Level EXACT: one deterministic browser context."""
