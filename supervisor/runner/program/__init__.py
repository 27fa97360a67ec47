"""One program: events in, effects carried out, one timer."""
