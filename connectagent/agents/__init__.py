"""Agents: the agent itself, trees of agents, hand-offs, workflows, and going on from a record."""
