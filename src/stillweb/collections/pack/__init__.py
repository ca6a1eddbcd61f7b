"""Packs: sealed, immutable, memory-mapped collections."""
