"""What exists for Supervisor's own clients: XML-RPC (`POST /RPC2`), `/logtail`, fault names and numbers.

Each method is one of our commands (commands/) with Supervisor's arguments, results and faults. Imports commands,
streams and what is below them. The protocol of event listeners is in supervisor/runner/listeners; the states as
Supervisor names them are in supervisor/core/listeners/wire_states.py.
"""
