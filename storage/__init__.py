"""Files, SQLite, slots and rebuild: synchronous; the daemon calls it in threads."""
