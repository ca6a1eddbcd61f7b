"""Status, metrics and the monitor page."""
