"""Log in before a recording."""
