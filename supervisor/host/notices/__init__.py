"""Where notices come from: one source a file, all of them giving the same value (`core.notices.Notice`).

From below: reading (bytes to words), announcement (what a source says, on its own clock), heard (what of it is new),
metadata (the one HTTP client), polling (asks for ever); the sources aws, google, azure, alibaba, file (with notice_file
and notice_folder) and logind (with logind_bus); detect (which cloud this is) and choose (which sources to watch).
"""
