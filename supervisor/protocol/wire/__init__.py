"""What do daemon and worker tell each other, and how does it become bytes? May import checkpoints (names of files)."""
