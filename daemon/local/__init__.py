"""Faces this host: the engine, the trainer and the operator."""
