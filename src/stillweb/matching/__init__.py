"""Request keys, rules and the resolver. Pure: no I/O except the mmap of a pack."""
