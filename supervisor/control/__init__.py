"""Serves people and programs that control the daemon: HTTP with a JSON API, Supervisor's XML-RPC, metrics and streams.

server.py answers requests, endpoints.py opens the sockets. Imports runner, host, core, config and what is below them.
"""
