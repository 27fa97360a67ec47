"""Everything that touches the machine: processes, pipes, files, systemd, the cloud. Decides nothing; the core does.

May import core (its types), protocol and libraries; nothing in it knows the runner or the API.
"""
