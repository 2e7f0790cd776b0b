"""A few hundred lines to try a recipe with, made up: sums in words."""

from __future__ import annotations

import json

_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = ("", "", "twenty", "thirty")


def _word(number: int) -> str:
    tens, ones = divmod(number, 10)
    return _WORDS[number] if number < 20 else _TENS[tens] + (f"-{_WORDS[ones]}" if ones else "")


def lines(kind: str) -> str:
    """JSON lines for this kind of training, the same in every call."""
    made: list[dict[str, str]] = []
    for a in range(20):
        for b in range(20):
            question, answer = f"What is {_word(a)} plus {_word(b)}?", f"{_word(a + b)}"
            if kind == "dpo":
                wrong = f"{_word((a + b + 7) % 39)}"
                made.append({"prompt": question, "chosen": f"It is {answer}.", "rejected": f"Maybe {wrong}"})
            elif kind in ("finetune", "lora"):
                made.append({"question": question, "answer": f"It is {answer}."})
            else:
                made.append(
                    {"text": f"{_word(a)} plus {_word(b)} is {answer}, and {answer} less {_word(b)} is {_word(a)}."}
                )
    return "".join(json.dumps(line) + "\n" for line in made)
