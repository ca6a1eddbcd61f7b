"""Observations of a page: accessibility tree, DOM, Markdown, marks, pictures."""
