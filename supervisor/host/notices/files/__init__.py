"""Notices as files in a watched folder: source.py watches it, folder.py reads it safely, format.py parses a file."""
