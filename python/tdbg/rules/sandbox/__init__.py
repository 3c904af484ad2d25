"""Runs rules from outside of tdbg, each in a process of its own."""
