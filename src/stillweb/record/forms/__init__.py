"""Recording of forms with values of our own, to derive the answers to other values."""
