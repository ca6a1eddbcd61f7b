"""Requests of scripts: for links, forms, lists and rows of recorded pages, and for files that they name."""
