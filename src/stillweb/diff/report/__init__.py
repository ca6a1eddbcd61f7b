"""Reports of comparisons and certifications."""
