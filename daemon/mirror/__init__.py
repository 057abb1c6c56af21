"""Mirrors: a store outside the fleet that the publisher fills, and that nodes read when no peer can help."""
