"""The monitor: status of server and sessions as JSON, events, Prometheus metrics and a web page."""
