"""Where do notices come from? Each source reports what it sees; the core decides what of it is new.

source.py says what a source is. From below: metadata.py (an HTTP client for metadata servers) and parsing.py (strict
parsing of what they say); polling.py (a source that polls endpoints); clouds/ (one file for each provider), files/ (a
watched folder) and logind/ (systemd announces a shutdown); sources.py (the table of all sources, and which ones this
host uses). Beside them, drills.py (notices given on purpose) and store.py (the notices for the next daemon).

A source for another cloud is

1. one file in clouds/, with a `PolledSource` whose endpoints each return a `NoticeReport`: everything that the endpoint
   says at present, as `RawNotice`s. It remembers nothing, compares nothing, and never raises anything but MetadataError
   and ParseError. What it can't parse is a ParseError, never a notice and never silence. Each number (interval, longest
   warning) carries its source in the provider's documentation. `is_this_host` recognises the cloud by its firmware;
2. one row in the table of sources.py;
3. its rows in the table of docs/notices.md, and a paragraph there if an operator has to know or configure something;
4. tests: its answers in tests/host/notices/metadata_server.py, a file in clouds/ beside that, and a row in each of
   test_faults.py (every fault of a server, for every source), test_sources.py (firmware) and test_parsing.py (fuzz).

May import the core's notices, host.processes (the id of this boot) and the protocol. The sink of all sources is
runner/fleet/notice_dispatcher.py.
"""
