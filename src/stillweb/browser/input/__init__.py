"""Mouse, keyboard and form input by element id."""
