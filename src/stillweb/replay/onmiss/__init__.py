"""`--on-miss pywb`: a front that asks pywb for what the native server misses."""
