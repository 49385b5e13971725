"""Replay: the recorded answers of model and tools through today's handlers, offline. Public is what `__all__` lists.

`replay` plays a record and says what differs. `Playing` is for those who play it otherwise: with other tools, or, as
`LivePlaying` does, with answers of a model where the record has none.
"""

from __future__ import annotations

from connectagent.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from connectagent.replay.answers import model_answer
    from connectagent.replay.compare import final_calls
    from connectagent.replay.handlers import loaded_handlers, made_with, with_handlers
    from connectagent.replay.live import LivePlaying, ask_model
    from connectagent.replay.network import NetworkRefused, no_network
    from connectagent.replay.outcome import Replay
    from connectagent.replay.player import Player, RecordEnds
    from connectagent.replay.playing import Playing, agent_from_record
    from connectagent.replay.recording import RecordedTurn, Recording, Sent
    from connectagent.replay.replaying import Replaying, replay
    from connectagent.replay.request_keys import LiveKeys, RecordedKeys
    from connectagent.replay.runs import Run, runs_of
    from connectagent.replay.sandbox import offline, sandboxed

_HOMES = {
    "replay.answers": "model_answer",
    "replay.compare": "final_calls",
    "replay.handlers": "loaded_handlers made_with with_handlers",
    "replay.live": "LivePlaying ask_model",
    "replay.network": "NetworkRefused no_network",
    "replay.outcome": "Replay",
    "replay.player": "Player RecordEnds",
    "replay.playing": "Playing agent_from_record",
    "replay.recording": "RecordedTurn Recording Sent",
    "replay.replaying": "Replaying replay",
    "replay.request_keys": "LiveKeys RecordedKeys",
    "replay.runs": "Run runs_of",
    "replay.sandbox": "offline sandboxed",
}

__all__ = [
    "LiveKeys",
    "LivePlaying",
    "NetworkRefused",
    "Player",
    "Playing",
    "RecordEnds",
    "RecordedKeys",
    "RecordedTurn",
    "Recording",
    "Replay",
    "Replaying",
    "Run",
    "Sent",
    "agent_from_record",
    "ask_model",
    "final_calls",
    "loaded_handlers",
    "made_with",
    "model_answer",
    "no_network",
    "offline",
    "replay",
    "runs_of",
    "sandboxed",
    "with_handlers",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
