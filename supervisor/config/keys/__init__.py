"""The sections of the file with their keys, defaults and descriptions, as dataclasses. Imports schema."""
