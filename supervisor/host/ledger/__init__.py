"""The history on disk, in SQLite."""
