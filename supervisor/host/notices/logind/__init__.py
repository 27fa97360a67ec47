"""Notices from systemd-logind: somebody shuts this host down. bus.py has the D-Bus calls (optional dbus-fast)."""
