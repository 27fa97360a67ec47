"""Supervisor's XML-RPC interface."""
