"""Events to Supervisor's event listeners and to clients that watch."""
