"""The engine: reads each new step once, has the rules judge it, keeps what they say."""
