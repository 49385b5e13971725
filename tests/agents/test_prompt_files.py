"""Files of system prompts that cannot be used, in each form in which they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectagent import Agent, ConfigError
from connectagent.testing import ScriptedLLM


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfe\x00", None])
@pytest.mark.parametrize("form", ["path", "suffix", "folder", "name", "no_suffix"])
def test_a_prompt_file_that_cannot_be_used_is_told(
    content: bytes | None, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts").mkdir()
    source, file = {
        "path": (Path("helper.md"), "helper.md"),
        "suffix": ("helper.md", "helper.md"),
        "folder": ("helper.md", "prompts/helper.md"),
        "name": ("helper", "prompts/helper.txt"),
        "no_suffix": ("helper", "prompts/helper"),
    }[form]
    if content is not None:
        Path(file).write_bytes(content)
    elif form in ("name", "no_suffix"):
        assert Agent("a", system_prompt=source, llm=ScriptedLLM(), log=False, quiet=True).system_prompt == "helper"
        return  # there is no file that it could mean: it is the prompt
    with pytest.raises(ConfigError, match="helper" if content is None or content.strip() else "empty"):
        Agent("a", system_prompt=source, llm=ScriptedLLM(), log=False, quiet=True)
