"""Learn volatile request parts from two recordings."""
