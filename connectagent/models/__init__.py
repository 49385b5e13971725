"""The models behind an `LLM`: names, adapters and prices. The SDKs are imported at the first call."""
