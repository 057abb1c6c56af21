"""Trainer side: state dicts and checkpoint folders become versions."""
