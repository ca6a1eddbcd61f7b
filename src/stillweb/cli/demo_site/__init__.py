"""A small bookshop of our own, with the difficulties that real sites have; `stillweb demo` records it."""
