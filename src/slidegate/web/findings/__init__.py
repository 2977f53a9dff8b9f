"""Start-up findings: settings that work but are probably mistakes."""
