"""Record the requests that a replay missed."""
