"""What is to be done? Events in, effects out: no clock, no process, no file, no randomness. Imports only `protocol`."""
