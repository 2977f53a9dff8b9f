"""Other libraries and slidegate side by side, under one virtual clock: what each admits, promises and refuses."""
