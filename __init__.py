"""Marks the repository root as the package that `.tooling/patchswarm` names; never shipped."""
