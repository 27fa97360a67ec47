"""Notices that this host is going away: which hold, and when a flush has to be requested."""
