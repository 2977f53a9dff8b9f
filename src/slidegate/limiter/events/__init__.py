"""Events on their way from where they happen to those who observe a limiter."""
