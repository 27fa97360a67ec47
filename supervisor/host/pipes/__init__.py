"""How does the daemon talk with a process it started? Three kinds of pipes, and the socket of sd_notify(3)."""
