"""Tables of benchmarks: what they hold, where they are saved, and how docs/benchmarks.md and its charts follow them."""
