"""Supervisor's event listeners: their protocol's states and the event types."""
