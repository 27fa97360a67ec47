"""Serves people and programs that control the daemon: HTTP with a JSON API, Supervisor's XML-RPC, metrics and streams.

server.py answers requests, endpoints.py has the sockets for that, which listening_sockets.py makes. Imports runner,
host, core, config and what is below them.
"""
