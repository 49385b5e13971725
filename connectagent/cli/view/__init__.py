"""A record as a page: served while it grows, or written as one file.

No plugin is loaded. The texts in a record come from users, models and tools: the page shows them as text.
"""
