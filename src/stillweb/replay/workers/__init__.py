"""Several replay workers behind one port."""
