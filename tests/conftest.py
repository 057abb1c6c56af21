"""What every test shares: hypothesis judges results, never the speed of a shared machine."""

from hypothesis import settings

settings.register_profile("patchswarm", deadline=None, print_blob=True)
settings.load_profile("patchswarm")
