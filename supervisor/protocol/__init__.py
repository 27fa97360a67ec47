"""What the daemon and a worker have in common: words, files and folders. Standard library only, but for xxhash."""
