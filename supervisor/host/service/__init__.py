"""How does the daemon run as a service of the host: in the background, only once, under systemd?"""
