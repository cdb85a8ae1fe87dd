"""Makes tiny/: a byte-level BPE of six hundred tokens, trained on the invented text below, with a chat template.

    python tests/data/tokenizers/make.py

The library's trainer is deterministic here, so the same text gives the same files.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
CONTROL = ["<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|image|>"]
TEXT = """
The lighthouse keeper counts the boats in the morning and the boats in the evening. When the counts differ, she
rings the bell twice and writes the number in the green book. There are forty-one green books; the first begins
in 1893, and nobody reads it. "Which boat is missing?" asks the harbour. "The one that isn't here," she'll answer.
Der Leuchtturmwärter zählt die Boote am Morgen und die Boote am Abend. Le gardien du phare compte les bateaux.
def count(boats): return sum(1 for boat in boats if boat.name != "Ärger")  # 12 34 567 8901 23456
    if not boats:
        raise ValueError("no boats today")
灯台守は朝に船を数え、夕方にも船を数える。Смотритель маяка считает лодки утром и вечером. 🚢🚢⚓️ naïve café 3.14159
the answer to the question is the answer that the question asks for, and then there is another question
{"name": "ring_bell", "arguments": {"times": 2, "why": "a boat is missing"}} [{"type": "text", "text": "boats"}]
"""


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in CONTROL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    write("tokenizer.json", json.loads(tokenizer.to_str()))
    template = (HERE / "templates" / "objects.jinja").read_text(encoding="utf-8")
    bos = {"__type": "AddedToken", "content": "<|bos|>", "special": True}  # settings hold tokens bare or like this
    write("tokenizer_config.json", {"bos_token": bos, "eos_token": "<|eos|>", "chat_template": template})


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tiny" / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
