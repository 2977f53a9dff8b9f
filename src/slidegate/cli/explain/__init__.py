"""``slidegate explain``: the bounds of limits, before they are on."""
