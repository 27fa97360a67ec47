"""A job's copy in an object store: when to ask it, and what for. `host/mirror` does it, in another process."""
