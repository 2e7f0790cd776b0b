"""Pairs of answers: `write_chat(pairs=True)`, `keepstep data chat --pairs`, `PreferencePairs`; tables as input."""

import json
import pickle
import subprocess
import sys

import pytest
import torch

from keepstep import KeepstepError
from keepstep.data import PackedDataset, PreferencePairs, write_chat
from keepstep.data.chat import pair_of

ASKED = {"role": "user", "content": "Why?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("Because.", "No."))
BEFORE = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def text(tokens):
    return bytes(token for token in tokens.tolist() if token < 256).rstrip(b"\0").decode()


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"prompt": "Why?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD], "score": 5},
    ],
)
def test_a_pair_is_two_answers_to_one_question(tmp_path, line):
    (tmp_path / "pairs.jsonl").write_text(json.dumps(line) + "\n")
    summary = write_chat(tmp_path / "pairs", [tmp_path / "pairs.jsonl"], pairs=True)
    assert summary.examples == 1
    sample = PreferencePairs(str(tmp_path / "pairs"), 127)[0]
    assert [text(row) for row in sample["tokens"]] == [
        f"{BEFORE}{answer}<|im_end|>\n" for answer in ("Because.", "No.")
    ]
    trained = [text(row[mask]) for row, mask in zip(sample["tokens"], sample["loss_mask"], strict=True)]
    assert trained == ["Because.<|im_end|>\n", "No.<|im_end|>\n"]


def test_only_the_last_answer_of_a_conversation_is_trained_on():
    chosen, rejected = pair_of({"chosen": [ASKED, BAD, ASKED, GOOD], "rejected": [ASKED, BAD, ASKED, BAD]})
    assert [turn.trained for turn in chosen] == [turn.trained for turn in rejected] == [False, False, False, True]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            "a pair has chosen and rejected, and mostly prompt; this one has prompt, chosen",
        ),
        ({"chosen": "b", "rejected": "c"}, "'chosen' is a string, and there is no 'prompt' that it answers"),
        ({"chosen": [ASKED], "rejected": [ASKED]}, "the last turn of 'chosen' is not of 'assistant'"),
        ({"chosen": [], "rejected": []}, "the last turn of 'chosen' is not of 'assistant'"),
        ({"prompt": 5, "chosen": "b", "rejected": "c"}, "'prompt' is a string or a list of turns, not int"),
        ({"prompt": "a", "chosen": 5, "rejected": "c"}, "'chosen' is a string or a list of turns, not int"),
        ({"chosen": [{}], "rejected": []}, "turn 0 has 'role' and 'content', both strings"),
        ([], "a pair has chosen and rejected, and mostly prompt; this one has list"),
    ],
)
def test_a_line_that_is_no_pair_is_said_with_its_place(tmp_path, line, complaint):
    (tmp_path / "pairs.jsonl").write_text("\n" + json.dumps(line) + "\n")
    with pytest.raises(KeepstepError) as caught:
        write_chat(tmp_path / "pairs", [tmp_path / "pairs.jsonl"], pairs=True)
    assert f"pairs.jsonl:2: {complaint}" in str(caught.value)


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path):
    lines = [{"prompt": "a", "chosen": "b" * number, "rejected": "c"} for number in (1, 900, 2)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_chat(tmp_path / "pairs", [tmp_path / "pairs.jsonl"], pairs=True)
    pairs = PreferencePairs(str(tmp_path / "pairs"), 127, padding=9)
    assert (len(pairs), pairs.too_long) == (2, 1)
    batch = pickle.loads(pickle.dumps(pairs)).make_batch([1, 0])
    assert batch["tokens"].shape == batch["loss_mask"].shape == (2, 2, 128)
    for row, number in enumerate((1, 0)):
        for name, tensor in pairs[number].items():
            assert torch.equal(batch[name][row], tensor)
    assert batch["tokens"][0, 0, -1] == 9 and not batch["loss_mask"][0, 0, -1]
    with pytest.raises(KeepstepError, match="none of the 3 pairs"):
        PreferencePairs(str(tmp_path / "pairs"), 8)


def test_a_corpus_without_pairs_is_refused(tmp_path):
    (tmp_path / "chat.jsonl").write_text(json.dumps({"question": "a", "answer": "b"}) + "\n")
    write_chat(tmp_path / "chat", [tmp_path / "chat.jsonl"])
    with pytest.raises(KeepstepError, match="`keepstep data chat --pairs` writes pairs"):
        PreferencePairs(str(tmp_path / "chat"), 128)


@pytest.mark.parametrize("suffix", ["arrow", "feather", "parquet"])
def test_tables_have_the_same_examples_as_json_lines(tmp_path, suffix):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    rows = [{"messages": [ASKED, GOOD], "other": None}, {"messages": [ASKED, BAD], "other": "x"}]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table, path = pyarrow.Table.from_pylist(rows), tmp_path / f"chat.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, path)
    elif suffix == "feather":
        feather.write_feather(table, path)
    else:  # a stream, as the data sets that Hugging Face saves
        with pyarrow.ipc.new_stream(path, table.schema) as out:
            out.write_table(table)
    for source in (tmp_path / "chat.jsonl", path):
        command = [
            sys.executable,
            "-m",
            "keepstep.data",
            "chat",
            "--input",
            source,
            "--out",
            f"{source}.made",
            "--quiet",
        ]
        subprocess.run(command, check=True)
    made, expected = (PackedDataset(f"{source}.made", 63)[0] for source in (path, tmp_path / "chat.jsonl"))
    assert all(torch.equal(made[name], expected[name]) for name in expected)


def test_a_table_that_is_damaged_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "chat.arrow").write_bytes(b"ARROW1 and no more")
    with pytest.raises(KeepstepError, match=r"chat\.arrow': no arrow file that can be read"):
        write_chat(tmp_path / "chat", [tmp_path / "chat.arrow"])
