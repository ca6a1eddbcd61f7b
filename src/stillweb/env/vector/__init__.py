"""Many sessions on pooled browsers."""
