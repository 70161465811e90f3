"""The long-running processes; each composes core and edge."""
