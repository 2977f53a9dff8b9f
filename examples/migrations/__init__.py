"""Compares other libraries with slidegate under one virtual clock: admissions, refusals and Retry-After."""
