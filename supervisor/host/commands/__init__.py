"""Commands that the daemon runs beside programs: hooks and health checks."""
