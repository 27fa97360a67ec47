"""A first configuration file for a script (`supervisord --init`): what its text says, and how a person starts it."""
