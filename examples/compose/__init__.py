"""An application on Redis with two workers, Prometheus and Grafana, in containers."""
