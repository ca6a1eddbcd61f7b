"""Crawl sites with the recorder's own browser."""
