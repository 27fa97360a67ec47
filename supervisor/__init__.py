"""stepkeeper's daemon and its command line; see ARCHITECTURE.md for the rooms."""

__version__ = "0.1.0"
