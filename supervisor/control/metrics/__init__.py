"""`GET /metrics`: a sample of what the daemon knows, and the page for Prometheus made from it."""
