"""The recording proxy (mitmproxy)."""
