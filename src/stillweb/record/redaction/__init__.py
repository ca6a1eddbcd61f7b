"""Take secrets out of exchanges before they are written."""
