"""The dashboard: a page without a build step, and the stream of figures that keeps it up to date."""
