"""The tokenizer and the chat template of the sample checkpoint, out of the GGUF through transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from producer.checkpoint.layout import CHAT_TEMPLATE_NAME, write_json
from producer.checkpoint.source import SourceFile

_CONFIG_NAME: Final = "tokenizer_config.json"
_HOW_IT_WAS_LOADED: Final = ("is_local", "local_files_only", "name_or_path", "gguf_file")


def load_tokenizer(source: SourceFile) -> Any:
    """The tokenizer inside the GGUF; nothing but the file is read."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(source.path.parent), gguf_file=source.path.name, local_files_only=True)


def write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Write ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja`` into ``folder``."""
    template = str(tokenizer.chat_template)
    tokenizer.save_pretrained(str(folder))
    (folder / CHAT_TEMPLATE_NAME).write_text(template, encoding="utf-8")
    config = json.loads((folder / _CONFIG_NAME).read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    for key in _HOW_IT_WAS_LOADED:
        config.pop(key, None)
    write_json(folder / _CONFIG_NAME, config)


def encode_conversations(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as a user's message, the chat template applied."""
    conversations = (
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for text in texts
    )
    return [[int(token) for token in tokens] for tokens in conversations]
