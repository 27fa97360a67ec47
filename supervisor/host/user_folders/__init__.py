"""Folders that other users can write into: no link in them leads elsewhere, and no mount over them is waited for."""
