"""Notices from cloud providers, one provider a file."""
