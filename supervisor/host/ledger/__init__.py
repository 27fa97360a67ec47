"""What does the daemon remember on disk? The history of every program, in one SQLite file."""
