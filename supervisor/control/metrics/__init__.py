"""`GET /metrics` for Prometheus."""
