"""The reference: stores and windows that are only there to be right. They need the standard library alone."""
