"""What programs print: captured by a process that outlives the daemon, and written to files, syslog and the journal."""
