"""Sockets, tasks, HTTP, CLI and configuration: the floor that touches the world."""
