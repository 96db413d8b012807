"""Decides whether a chain's next steps are speculated or written by the target alone. Synchronous and pure; nothing here waits."""
