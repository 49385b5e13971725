"""What a command needs: its options, the agent of a script or a record, tables, and errors in one style."""
