"""Call a copy of the model with changed inputs."""
