"""Notices from cloud providers, one file for each: what its endpoints say, and how its firmware is recognised."""
