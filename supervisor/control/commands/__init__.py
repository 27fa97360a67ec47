"""The commands, in one fixed table."""
