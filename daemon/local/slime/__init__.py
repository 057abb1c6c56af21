"""slime's delta folders, read as a source of versions and written as a target for hosts that still pull them."""
