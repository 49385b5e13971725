"""What may leave for eyes and files: masked, harmless, in rows, on a terminal."""
