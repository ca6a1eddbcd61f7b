"""Harvest: record many pages by plain HTTP, without a browser."""
