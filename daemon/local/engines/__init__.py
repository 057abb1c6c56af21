"""Drivers: how each inference engine is paused, given new weights, asked what it holds, and resumed."""
