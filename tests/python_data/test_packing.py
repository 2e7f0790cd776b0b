"""`keepstep.data.PackedDataset` and `write_chat`: what is in a sample, masks, plans on disk, and bad input."""

import gzip
import json
import multiprocessing
import os
import pickle
import random
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest
import torch
from test_token_dataset import write

from keepstep import KeepstepError
from keepstep.data import Blend, PackedDataset, document_mask, write_chat
from keepstep.data.chat import turns_of


@pytest.fixture
def documents():
    """Numbers that say where they are from: document * 100 + place; some are empty, of one token, or long."""
    numbers = random.Random(5)
    lengths = [numbers.choice([0, 1, 2, 3, 8, 20, 31, 33, 34, 90]) for _ in range(300)]
    return [[100 * number + place for place in range(length)] for number, length in enumerate(lengths)]


def pieces(sample):
    """The documents in a sample, as lists of tokens; checks that ids, positions and padding fit together."""
    tokens, ids, positions = (sample[name].tolist() for name in ("tokens", "document_ids", "position_ids"))
    found = []
    for token, number, position in zip(tokens, ids, positions, strict=True):
        if number == -1:
            assert (token, position) == (0, 0)
        elif position == 0:
            assert number == len(found), "documents are numbered in their order"
            found.append([token])
        else:
            assert number == len(found) - 1 and position == len(found[-1])
            found[-1].append(token)
    return found


def test_the_command_makes_the_same_corpus_and_says_what_it_left_out(tmp_path):
    lines = [json.dumps({"question": f"what is {i}?", "answer": "a number"}) for i in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:12]) + "\n{}\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as packed:
        packed.write("\n".join(lines[12:]) + "\n")
    (tmp_path / "all.jsonl").write_text("\n".join(lines) + "\n")
    write_chat(tmp_path / "whole", [tmp_path / "all.jsonl"], end_of_document=256, vocabulary=257)
    command = [sys.executable, "-m", "keepstep.data", "chat", "--out", tmp_path / "made.bin", "--append-eod"]
    command += ["--input", tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"]
    stopped = subprocess.run(command, capture_output=True, text=True)
    assert stopped.returncode == 1 and f"{tmp_path}/a.jsonl:13: an example has messages" in stopped.stderr
    assert not list(tmp_path.glob("made*"))
    done = subprocess.run([*command, "--on-error", "skip"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "20 examples" in done.stdout and "left out: 1 lines" in done.stdout
    for suffix in ("bin", "idx", "loss.bin", "loss.idx"):
        assert (tmp_path / f"made.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    whole = (tmp_path / "b.jsonl.gz").read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-12])
    cut = subprocess.run([*command, "--on-error", "skip", "--force"], capture_output=True, text=True)
    assert cut.returncode == 1 and "b.jsonl.gz' cannot be decompressed" in cut.stderr


def test_every_token_but_the_first_of_a_document_is_predicted_once(tmp_path, documents):
    packed = PackedDataset(write(tmp_path / "c", documents), 32)
    predicted = []
    for sample in (packed[i] for i in range(len(packed))):
        pieces(sample)
        predicted += sample["tokens"][sample["loss_mask"]].tolist()
        assert not sample["loss_mask"][0]
    assert sorted(predicted) == sorted(token for document in documents for token in document[1:])
    assert packed.skipped == sum(len(document) < 2 for document in documents)
    assert packed.too_long == sum(len(document) > 33 for document in documents)
    assert packed.documents == 300


def test_no_document_is_cut_that_fits_and_little_is_padding(tmp_path, documents):
    packed = PackedDataset(write(tmp_path / "c", documents), 32)
    found = [piece for i in range(len(packed)) for piece in pieces(packed[i])]
    whole = [document for document in documents if 2 <= len(document) <= 33]
    assert [piece for piece in found if piece in whole].sort() == whole.sort()
    assert all(document in found for document in whole)
    assert packed.filled > 0.95
    assert packed.tokens == sum(map(len, found))


@pytest.mark.parametrize("rule", ["truncate", "drop"])
def test_documents_that_are_too_long_can_be_truncated_or_dropped(tmp_path, documents, rule):
    packed = PackedDataset(write(tmp_path / "c", documents), 32, too_long=rule)
    found = sorted(piece for i in range(len(packed)) for piece in pieces(packed[i]))
    kept = [
        document[:33] for document in documents if len(document) >= 2 and (rule == "truncate" or len(document) < 34)
    ]
    assert found == sorted(kept)


def test_the_plan_is_one_file_that_all_processes_find(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    with multiprocessing.get_context("fork").Pool(6) as pool:
        made = pool.starmap(_opened, [(prefix, 32)] * 12)
    assert len(set(made)) == 1
    plans = list(tmp_path.glob("c.pack-*"))
    assert [str(plan) for plan in plans] == [PackedDataset(prefix, 32).plan]
    first = plans[0].read_bytes()
    plans[0].unlink()
    assert _opened(prefix, 32) == made[0]
    assert plans[0].read_bytes() == first, "made anew it has the same bytes"
    assert PackedDataset(prefix, 16).plan != str(plans[0])


def _opened(prefix, length):
    packed = PackedDataset(prefix, length)
    return packed.plan, len(packed)


def test_another_corpus_of_the_same_name_gets_another_plan(tmp_path, documents):
    old = PackedDataset(write(tmp_path / "c", documents), 32).plan
    for suffix in (".bin", ".idx"):
        (tmp_path / f"c{suffix}").unlink()
    again = PackedDataset(write(tmp_path / "c", documents[::-1]), 32)
    assert again.plan != old
    assert sum(len(pieces(again[i])) for i in range(len(again))) > 200


def test_a_plan_can_be_kept_elsewhere(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    (tmp_path / "plans").mkdir()
    packed = PackedDataset(prefix, 32, plan_folder=str(tmp_path / "plans"))
    assert Path(packed.plan).parent == tmp_path / "plans" and not list(tmp_path.glob("*.pack-*"))
    with pytest.raises(KeepstepError, match=r"create the plan of packing .*nowhere.*plan_folder="):
        PackedDataset(prefix, 32, plan_folder=str(tmp_path / "nowhere"))


def test_damaged_plans_are_named(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    plan = Path(PackedDataset(prefix, 32).plan)
    whole = plan.read_bytes()
    for damaged, message in (
        (whole[:-1], "is damaged"),
        (whole + b"\0", "is damaged"),
        (whole[:50], "has 50 bytes"),
        (b"\0" * len(whole), "is no plan of packing"),
        (whole[:8] + struct.pack("<Q", 9) + whole[16:], "has version 9"),
        (whole[:32] + struct.pack("<Q", 2**61) + whole[40:], "is damaged"),
    ):
        plan.write_bytes(damaged)
        with pytest.raises(KeepstepError, match=message):
            PackedDataset(prefix, 32)
    plan.write_bytes(whole[:88] + struct.pack("<Q", 2**40) + whole[96:])  # where row 0 ends
    broken = PackedDataset(prefix, 32)
    with pytest.raises(KeepstepError, match="row 0 is none"):
        broken[0]


def test_splits_batches_blends_and_pickles_as_other_data_sets(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    train = PackedDataset(prefix, 32, split="train", splits={"train": 3, "test": 1}, padding=0)
    test = PackedDataset(prefix, 32, split="test", splits={"train": 3, "test": 1})
    ends = {piece[-1] // 100 for i in range(len(test)) for piece in pieces(test[i])}
    assert min(ends) >= 225 and train.documents == 225
    again = pickle.loads(pickle.dumps(train))
    chosen = [3, 0, len(train) - 1, 3]
    batch = again.make_batch(chosen)
    for row, sample in enumerate(chosen):
        for name, tensor in train[sample].items():
            assert torch.equal(batch[name][row], tensor), name
    assert batch["loss_mask"].dtype == torch.bool
    mixed = Blend.of({"a": train, "b": test}, {"a": 0.5, "b": 0.5})
    numbers = [0, len(train), 1]
    for name, rows in mixed.make_batch(numbers).items():
        assert torch.equal(rows, torch.stack([mixed[number][name] for number in numbers])), name
    mixed.will_need(numbers)
    with pytest.raises(IndexError, match=f"sample {len(train)} of"):
        train[len(train)]
    with pytest.raises(IndexError, match="sample -1 of"):
        train.make_batch([-1])


def test_attention_within_documents_is_that_of_each_document_alone(tmp_path, documents):
    packed = PackedDataset(write(tmp_path / "c", documents), 32)
    torch.manual_seed(1)
    embedding, attend = torch.nn.Embedding(30_000, 16), torch.nn.functional.scaled_dot_product_attention
    positions = torch.nn.Embedding(33, 16)

    def through(tokens, places, mask):
        x = (embedding(tokens) + positions(places)).unsqueeze(1)
        return attend(x, x, x, attn_mask=mask).squeeze(1)

    batch = packed.make_batch(range(8))
    together = through(batch["tokens"], batch["position_ids"], document_mask(batch["document_ids"]))
    assert not together.isnan().any()
    for row in range(8):
        at = 0
        for document in pieces(packed[row]):
            count = len(document)
            causal = torch.ones(count, count, dtype=torch.bool).tril()
            alone = through(torch.tensor([document]), torch.arange(count).unsqueeze(0), causal)
            torch.testing.assert_close(together[row, at : at + count], alone[0])
            at += count


def conversations():
    """Generated from the standard library: what does this function do? Its docstring."""
    import ast

    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:30]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                found.append((f"{len(found)}: what does {path.stem}.{node.name} do?", text))
    return found


def test_what_users_say_is_read_and_what_assistants_say_is_trained(tmp_path):
    asked = conversations()
    assert len(asked) > 200
    with open(tmp_path / "chat.jsonl", "w") as chat:
        for number, (question, answer) in enumerate(asked):
            if number % 3 == 0:
                turns = [("system", "Be brief."), ("user", question), ("assistant", answer)]
                chat.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}) + "\n")
            elif number % 3 == 1:
                chat.write(json.dumps({"question": question, "answer": answer}) + "\n\n")
            else:
                chat.write(json.dumps({"instruction": question, "input": "In short.", "output": answer}) + "\n")
    prefix = str(tmp_path / "c")
    summary = write_chat(prefix, [tmp_path / "chat.jsonl"], end_of_document=256, vocabulary=257)
    assert summary.examples == len(asked)
    packed = PackedDataset(prefix, 1024, too_long="drop")
    trained = {}
    for i in range(len(packed)):
        sample = packed[i]
        for number, document in enumerate(pieces(sample)):
            mask = sample["loss_mask"][sample["document_ids"] == number].tolist()
            said = bytes(token for token, on in zip(document, mask, strict=True) if on and token < 256).decode()
            whole = bytes(token for token in document if token < 256).decode()
            trained[whole] = said
            assert document[-1] == 256 and mask[-1]
    for question, answer in asked:
        if len((question + answer).encode()) > 800:
            continue
        whole = next(text for text in trained if question in text and answer in text)
        assert trained[whole] == f"{answer}<|im_end|>\n"
    assert packed.too_long + sum(len(pieces(packed[i])) for i in range(len(packed))) == len(asked)
    mask = numpy.fromfile(f"{prefix}.loss.bin", numpy.uint8)
    assert (len(mask), mask.sum()) == (summary.tokens, summary.trained_tokens)


def test_bad_lines_stop_it_or_are_counted(tmp_path):
    good = json.dumps({"prompt": "a", "response": "b"}).encode()
    bad = [
        (b'{"prompt": "a", "resp', "Unterminated string"),
        (b"[1]", "an example is an object, not list"),
        (b'{"text": "a"}', "this one has text"),
        (b'{"prompt": "a", "response": 3}', "'response' is a string, not int"),
        (b'{"messages": []}', "'messages' is a list of turns"),
        (b'{"messages": [3]}', "turn 0 is an object, not int"),
        (b'{"messages": [{"role": "user", "content": null}]}', "turn 0 has 'role' and 'content'"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "no turn is of 'assistant'"),
        (b'{"prompt": "\xff", "response": "b"}', "can't decode byte 0xff"),
        (b"[" * 100_000, "nested too deeply|Expecting|recursion"),
    ]
    for line, message in bad:
        (tmp_path / "bad.jsonl").write_bytes(good + b"\n" + line + b"\n" + good)
        with pytest.raises(KeepstepError, match=rf"bad\.jsonl:2: .*({message})"):
            write_chat(tmp_path / "c", [tmp_path / "bad.jsonl"])
        assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join([good, *(line for line, _ in bad), good]))
    summary = write_chat(tmp_path / "c", [tmp_path / "bad.jsonl"], skip_bad_lines=True)
    assert (summary.examples, summary.skipped_lines, len(summary.skipped)) == (2, len(bad), len(bad))
    with pytest.raises(KeepstepError, match="is there already"):
        write_chat(tmp_path / "c", [tmp_path / "bad.jsonl"], skip_bad_lines=True)
    with pytest.raises(KeepstepError, match="vocabulary=100"):
        write_chat(tmp_path / "d", [tmp_path / "bad.jsonl"], skip_bad_lines=True, vocabulary=100)
    with pytest.raises(KeepstepError, match="nothing"):
        write_chat(tmp_path / "d", [tmp_path / "nothing"])
    with pytest.raises(ValueError, match="an example has messages"):
        turns_of({})


def test_a_mask_of_another_shape_is_refused(tmp_path, documents):
    prefix = write(tmp_path / "c", documents)
    write(tmp_path / "c.loss", [[1] * len(document) for document in documents[1:]], "uint8")
    with pytest.raises(KeepstepError, match=r"c\.loss' has .* for the loss mask of .* it must have"):
        PackedDataset(prefix, 32)
    for path in tmp_path.glob("c.loss.*"):
        os.unlink(path)
    write(tmp_path / "c.loss", [[token % 2 for token in document] for document in documents], "uint8")
    packed = PackedDataset(prefix, 32)
    for i in range(len(packed)):
        sample = packed[i]
        expected = (sample["tokens"] % 2 == 1) & (sample["position_ids"] > 0)
        assert torch.equal(sample["loss_mask"], expected)


def test_mistakes_are_named(tmp_path):
    prefix = write(tmp_path / "c", [[1], [], list(range(50))])
    with pytest.raises(KeepstepError, match="too_long='tear'; cut, truncate or drop"):
        PackedDataset(prefix, 8, too_long="tear")
    with pytest.raises(KeepstepError, match="2 have fewer than two tokens, 1 are too long"):
        PackedDataset(prefix, 8, too_long="drop")
    with pytest.raises(KeepstepError, match="sequence_length=0"):
        PackedDataset(prefix, 0)
    with pytest.raises(KeepstepError, match="rows of 16777218 tokens"):
        PackedDataset(prefix, 1 << 24 | 1)
