"""The environments that ship with the service, one folder each."""
