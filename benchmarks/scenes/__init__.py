"""The scenes of `bench floods`."""
