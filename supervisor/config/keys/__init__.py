"""The sections of the file with their keys, defaults and descriptions. Imports schema, and words from the core."""
