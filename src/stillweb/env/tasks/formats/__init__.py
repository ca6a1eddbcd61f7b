"""Task files of other benchmarks: a module for each, which `tasks/load.py` names."""
