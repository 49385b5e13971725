"""A record as a page: served while it grows, or written as one file.

No plugin is loaded. What a record holds was written by users, models and tools: the page shows it as text.
"""
