"""How a section's class reads, checks and documents its keys."""
