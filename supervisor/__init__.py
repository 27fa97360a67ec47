"""stepkeeper's daemon and its command line; ARCHITECTURE.md says where to begin in each folder."""

__version__ = "0.1.0"
