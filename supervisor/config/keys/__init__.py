"""The keys of each section, with their defaults."""
