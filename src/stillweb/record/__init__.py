"""Room of stillweb; its public door is listed in `__all__`."""
