"""Load that is shed while the event loop lags or answers come late."""
