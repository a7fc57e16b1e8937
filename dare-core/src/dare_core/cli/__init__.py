"""The ``dare`` command."""
