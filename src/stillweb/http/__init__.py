"""HTTP messages, content codings, sans-io HTTP/1.1 and TLS."""
