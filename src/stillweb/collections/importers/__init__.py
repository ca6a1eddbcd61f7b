"""Importers for WARC, ARC, WACZ, HAR and browsertrix output."""
