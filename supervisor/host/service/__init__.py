"""The daemon as a service: one instance, background, systemd, the host's shutdown, what is imported."""
