"""The watch: what the history shows, measured again and traced to a commit."""
