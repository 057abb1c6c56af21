"""A seeded world of links, hosts and faults in which the protocol core, or a baseline, spreads one version."""
