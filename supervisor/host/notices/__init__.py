"""Where notices come from: one source a file, all of them giving the same value (`core.notices.Notice`)."""
