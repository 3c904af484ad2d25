"""The engine: reads each new step once, runs the rules, publishes findings."""
