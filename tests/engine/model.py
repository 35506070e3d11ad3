# SPDX-License-Identifier: Apache-2.0
"""A tiny language model made on the spot: a config and a tokenizer, weights left to chance.

Run with the engine's Python, which has ``tokenizers``:
``python tests/engine/model.py DIR``. vLLM fills in random weights (``--load-format dummy``).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

_SPECIAL = ("<s>", "</s>", "<pad>")
_VOCABULARY = 512
_WORDS = (
    "step token wait kernel queue lock batch prefill decode request stall page fault stream "
    "engine socket cache block thread worker"
).split()
_ENDINGS = ("", "s", "ed", "ing", "er")

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "model_max_length": 2048,
    "chat_template": (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    ),
}


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of made-up words: training text here, prompts in the load client."""
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(_WORDS) + rng.choice(_ENDINGS) for _ in range(20))
        for _ in range(count)
    ]


def _train_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(2000), trainer)
    tokenizer.save(str(path))


def write_model(folder: Path) -> None:
    """Write config and tokenizer into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    _train_tokenizer(folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG, indent=1))
    ids = {key: _CONFIG[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ids))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
