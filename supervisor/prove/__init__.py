"""Proves on a job's own command that training killed at any instant ends as an undisturbed one does.

It is a client of the ordinary daemon: each run has a private `supervisord` with a scratch configuration, and is resumed
by ordinary supervision. It may import `config`, `ini`, `protocol` and the client of `ctl`, and nothing of the daemon.
"""
