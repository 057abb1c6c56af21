"""Faces the other nodes: identity, control connections, lanes, the swarm."""
