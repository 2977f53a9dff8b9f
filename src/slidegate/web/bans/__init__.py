"""What strikes, and whom."""
