"""Task descriptions: yaml files with versions, and their schema."""
