"""`connectagent chat`: a conversation at the terminal."""
