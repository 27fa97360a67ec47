"""Notices from systemd-logind: somebody shuts this host down."""
