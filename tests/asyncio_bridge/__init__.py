"""The bridge to asyncio; what imports it runs in a process of its own."""
