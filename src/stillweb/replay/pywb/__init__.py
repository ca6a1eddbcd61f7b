"""pywb as a replay back-end, in a process of its own."""
