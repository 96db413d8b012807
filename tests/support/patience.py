"""How long a test waits for another process before it takes it to hang."""

HANGS_S = 600.0
"""Seconds. No test passes sooner or later for it: a machine with other work may be ten times slower than a quiet one."""
