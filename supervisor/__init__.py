"""stepkeeper's daemon and its command line; ARCHITECTURE.md has a section for each folder."""

__version__ = "0.1.0"
