"""Record sites into collections: crawl, explore, amend, or any client through the recording proxy."""
