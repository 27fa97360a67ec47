"""Responses that go on while a client listens: log tails and events."""
