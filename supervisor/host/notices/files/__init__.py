"""Notices from people: files in a watched folder, and drills."""
