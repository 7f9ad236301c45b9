"""Fixtures of the real parts (placeholder until the bed is in)."""
