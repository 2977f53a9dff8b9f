"""``slidegate explain``: what limits let through, before they are on."""
