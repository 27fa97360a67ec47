"""The pipes and sockets between the daemon and one program."""
