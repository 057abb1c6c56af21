"""Fuzzing of everything that strangers, members and local callers can send."""
