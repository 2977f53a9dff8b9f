"""Those who look on: they are shown what the limiter decides, and find the gates that ask it."""
