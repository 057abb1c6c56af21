"""Bytes in, decisions out: no sockets, files, clock, logging or randomness of its own."""
