"""What all parts of control share: the command context, errors, the audit log, and dataclasses as JSON."""
