"""Answers that go on: log tails and the event stream."""
