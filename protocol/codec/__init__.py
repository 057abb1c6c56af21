"""Chunk contents: bit-exact differences between two checkpoints, and full regions."""
