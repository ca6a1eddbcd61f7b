"""Answers to values that were not recorded, from templates that recordings prove (decision 0026)."""
