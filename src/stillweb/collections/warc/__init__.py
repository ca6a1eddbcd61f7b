"""WARC and ARC records, CDXJ, and the exchanges that they hold."""
