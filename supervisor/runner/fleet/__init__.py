"""All programs together: order, dependencies, notices, suspend detection."""
