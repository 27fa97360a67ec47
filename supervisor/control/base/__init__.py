"""What every way to serve a client shares: the context of a command, errors, the audit log."""
