"""How does the output of programs reach their log files, whatever happens to the daemon or a disk?

- The daemon's side: capture.py (its interface), handover.py, pipes.py, start.py.
- Between the two: messages.py, link.py, output_events.py.
- The logger process (standard library only): logger.py, inputs.py, capture_mode.py, system_log.py.
- Destinations: files/, syslog.py and journal.py; the daemon's own log uses the last two as well. files/ is also read
  back here, by attempt.

Begin with logger.py. Imports nothing of host but `BlockingCalls`.
"""
