"""`keepstep data build`: every format becomes the same documents; whatever is wrong with the input is named."""

import gzip
import json
import os
import subprocess

import pytest
from build_inputs import KEEPSTEP, command, documents, json_lines, run, sources, texts_of


def build(capsys, tmp_path, *patterns, out="corpus", options=(), code=0):
    inputs = [tmp_path / pattern for pattern in patterns]
    ran = run(capsys, "build", "--input", *inputs, "--out", tmp_path / out, "--json", "--workers", 2, *options)
    assert ran.code == code, ran.err
    return ran


def test_json_lines_text_and_directories_are_the_same_documents(tmp_path, capsys):
    texts = [text for _, text in sources()]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    tree = tmp_path / "tree"
    for number, text in enumerate(texts):
        path = tree / f"{number // 100:03d}" / f"{number:05d}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (tree / ".hidden.py").write_text("left out")
    (tree / ".git").mkdir()
    (tree / ".git" / "config").write_text("left out")
    (tree / "picture.png").write_bytes(b"\x89PNG\0\0")
    built = build(capsys, tmp_path, "a.jsonl").json
    assert built["documents"] == len(texts) and built["tokens"] == sum(len(text.encode()) for text in texts)
    assert built["dtype"] == "uint8" and built["parts"] >= 2
    assert texts_of(tmp_path / "corpus") == texts
    from_tree = build(capsys, tmp_path, "tree", out="tree_corpus").json
    assert (from_tree["files"], from_tree["binary_files_left_out"]) == (len(texts), 1)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"corpus{suffix}").read_bytes() == (tmp_path / f"tree_corpus{suffix}").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("corpus*")) == ["corpus.bin", "corpus.build.json", "corpus.idx"]


def test_compressed_and_other_formats_are_the_same_documents(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")

    texts = [text for _, text in sources(1_500_000)]
    lines = json_lines(texts).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines[:1000]) + gzip.compress(lines[1000:]))
    (tmp_path / "a.jsonl.zst").write_bytes(pyarrow.compress(lines, "zstd", asbytes=True))
    (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in texts], indent=1))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines))
    table = pyarrow.table({"id": range(len(texts)), "text": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    dictionary = table.set_column(1, "text", table["text"].dictionary_encode())
    feather.write_feather(dictionary, tmp_path / "a.feather", chunksize=40)
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, 30)
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json", "a.json.gz", "a.parquet", "a.feather", "a.arrow"):
        built = build(capsys, tmp_path, name, out=f"of_{name}").json
        assert (name, built["documents"], built["text_bytes"]) == (name, len(texts), built["tokens"])
        assert texts_of(tmp_path / f"of_{name}") == texts, name


def test_the_corpus_does_not_depend_on_the_number_of_workers(tmp_path, capsys):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(json_lines(text for _, text in sources()))
    for workers in (1, 3):
        options = ["--workers", workers, "--append-eod"]
        built = build(capsys, tmp_path, "*.jsonl", out=f"by{workers}", options=options).json
        assert built["parts"] > 3 and built["dtype"] == "uint16" and built["eod"] == 256
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"by1{suffix}").read_bytes() == (tmp_path / f"by3{suffix}").read_bytes()
    first = documents(tmp_path / "by1")[0]
    assert first[-1] == 256 and bytes(first[:-1]).decode() == sources()[0][1]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer.json with 2,000 tokens, which would truncate and pad."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<|endoftext|>", "<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train_from_iterator([text for _, text in sources(400_000)], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.enable_truncation(50)
    made.enable_padding(length=60)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def test_a_tokenizer_gives_the_tokens_that_its_library_gives(tmp_path, capsys, tokenizer):
    from tokenizers import Tokenizer

    texts = [text for _, text in sources(1_000_000)]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    built = build(capsys, tmp_path, "a.jsonl", options=["--tokenizer", tokenizer, "--append-eod"]).json
    assert (built["dtype"], built["vocabulary"], built["eod"]) == ("uint16", 2000, 0)
    plain = Tokenizer.from_file(str(tokenizer))
    plain.no_truncation()
    plain.no_padding()
    expected = [[*plain.encode(text, add_special_tokens=False).ids, 0] for text in texts]
    assert documents(tmp_path / "corpus") == expected
    options = ["--tokenizer", tokenizer, "--special-tokens", "--dtype", "int32"]
    built = build(capsys, tmp_path, "a.jsonl", out="special", options=options).json
    assert built["dtype"] == "int32"
    assert documents(tmp_path / "special") == [[1, *each[:-1]] for each in expected]
    said = run(capsys, "sample", tmp_path / "corpus", "--document", 3, "--tokens", 100_000, "--json").json
    assert said["tokens"] == expected[3] and said["text"] == texts[3] + "<|endoftext|>"


def test_a_text_that_a_tokenizer_refuses_is_an_error(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"a": 0}, unk_token="<unk>")
    tokenizers.Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text(json_lines(["a", "b"]))
    failed = build(capsys, tmp_path, "a.jsonl", code=1, options=["--tokenizer", tmp_path / "tokenizer.json"])
    assert "tokenizer.json cannot tokenize a text: " in failed.err


def test_parquet_goes_through_a_tokenizer_too(tmp_path, capsys, tokenizer):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    texts = [text for _, text in sources(300_000)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    build(capsys, tmp_path, "a.parquet", options=["--tokenizer", tokenizer])
    build(capsys, tmp_path, "a.jsonl", out="other", options=["--tokenizer", tokenizer])
    assert documents(tmp_path / "corpus") == documents(tmp_path / "other")


def test_megatron_reads_what_is_built(tmp_path, capsys):
    indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    texts = [text for _, text in sources(500_000)]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    build(capsys, tmp_path, "a.jsonl", options=["--append-eod"])
    theirs = indexed_dataset.IndexedDataset(str(tmp_path / "corpus"))
    assert [theirs[i].tolist() for i in range(len(theirs))] == [[*text.encode(), 256] for text in texts]
    assert theirs.document_indices.tolist() == list(range(len(texts) + 1))


def test_broken_json_stops_with_file_and_line_or_is_skipped_and_counted(tmp_path, capsys):
    lines = json_lines(["x" * 1000] * 9000).splitlines(keepends=True)  # several parts: a line in the middle of a file
    lines[8122] = '{"text": "y"\n'
    (tmp_path / "shard.jsonl").write_text("".join(lines))
    stopped = build(capsys, tmp_path, "shard.jsonl", code=1)
    assert f"'{tmp_path}/shard.jsonl' line 8123: broken JSON" in stopped.err
    assert "Nothing new is at" in stopped.err
    assert not list(tmp_path.glob("corpus.*x")) and not list(tmp_path.glob("corpus.bin"))
    skipped = build(capsys, tmp_path, "shard.jsonl", out="other", options=["--on-error", "skip"]).json
    assert (skipped["documents"], skipped["unreadable"]) == (8999, 1)
    assert "line 8123: broken JSON" in skipped["complaints"][0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xe4"}\n', "a.jsonl' line 2: no valid UTF-8"),
        ("a.txt", b"one\ntwo\nthr\xe9e\n", "a.txt' line 3: no valid UTF-8; is the file in another encoding"),
        ("a.jsonl", b'{"content": "a"}\n', "a.jsonl' line 1: no field 'text'; it has content. Choose with --field"),
        ("a.jsonl", b'{"text": 3}\n', "field 'text' is no string"),
        ("a.json", b'[{"text": "a"},\n{"text": "b"}', "a.json' line 2: the file ends inside its array"),
        ("a.jsonl.gz", gzip.compress(json_lines(["abc"] * 100).encode())[:-9], "a.jsonl.gz' is truncated"),
        ("a.jsonl.gz", b'{"text": "a"}\n', "is named .gz and has no gzip data"),
        ("a.jsonl.zst", b"", "is named .zst and is empty"),
        ("a.jsonl", b'{"text": ""}\n\n{"text": ""}\n', "no token in 1 files (2 empty documents"),
        ("a.parquet", b"PAR1 and then nothing", "a.parquet"),
    ],
)
def test_what_is_wrong_with_an_input_is_named(tmp_path, capsys, name, content, says):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    failed = build(capsys, tmp_path, name, code=1)
    assert says in failed.err and "Traceback" not in failed.err
    assert not (tmp_path / "corpus.idx").exists() and not (tmp_path / "corpus.bin").exists()


def test_what_can_be_skipped_is_skipped_and_counted(tmp_path, capsys):
    (tmp_path / "1.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe4"}\n{"other": "b"}\n{"text": ""}\n')
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(json_lines(["b"] * 5000).encode())[:-9])
    (tmp_path / "3.txt").write_text("c")
    built = build(capsys, tmp_path, "*.jsonl*", "3.txt", options=["--on-error", "skip"]).json
    assert built["unreadable"] == 3 and built["empty"] == 1 and len(built["complaints"]) == 3
    texts = texts_of(tmp_path / "corpus")
    assert texts[0] == "a" and texts[-1] == "c" and set(texts[1:-1]) == {"b"}


def test_columns_that_are_missing_null_or_no_text_are_named(tmp_path, capsys):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def table(column):
        return pyarrow.table({"content": column})

    parquet.write_table(table(["a", None, "", "b"]), tmp_path / "a.parquet")
    assert "no column 'text'; it has content" in build(capsys, tmp_path, "a.parquet", code=1).err
    options = ["--field", "content", "--force"]
    assert "row 1: column 'content' is null" in build(capsys, tmp_path, "a.parquet", code=1, options=options).err
    built = build(capsys, tmp_path, "a.parquet", options=[*options, "--on-error", "skip"]).json
    assert (built["documents"], built["unreadable"], built["empty"]) == (2, 1, 1)
    parquet.write_table(table([1, 2]), tmp_path / "b.parquet")
    assert "has int64, which is no text" in build(capsys, tmp_path, "b.parquet", code=1, options=options, out="b").err
    wrong = pyarrow.array([b"good", b"b\xe4d"]).view(pyarrow.string())
    parquet.write_table(table(wrong), tmp_path / "c.parquet")
    assert "row 1: no valid UTF-8" in build(capsys, tmp_path, "c.parquet", code=1, options=options, out="c").err


def test_mistakes_in_the_options_are_named(tmp_path, capsys, tokenizer):
    (tmp_path / "a.jsonl").write_text(json_lines(["abc"]))
    assert "nothing matches" in build(capsys, tmp_path, "*.parquet", code=1).err
    assert "there is no file or directory" in build(capsys, tmp_path, "missing.jsonl", code=1).err
    (tmp_path / "empty").mkdir()
    assert "no file of text in" in build(capsys, tmp_path, "empty", code=1).err
    small = ["--tokenizer", tokenizer, "--dtype", "uint8"]
    assert "--dtype uint8 holds tokens to 255; this vocabulary has 2000 (it needs uint16)" in build(
        capsys, tmp_path, "a.jsonl", code=1, options=small
    ).err  # fmt: skip
    assert "--eod <x>" in build(
        capsys, tmp_path, "a.jsonl", code=1, options=["--tokenizer", tokenizer, "--append-eod", "--eod", "<x>"]
    ).err  # fmt: skip
    assert "no such file" in build(capsys, tmp_path, "a.jsonl", code=1, options=["--tokenizer", "none.json"]).err
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    assert "no tokenizer.json that can be read" in build(
        capsys, tmp_path, "a.jsonl", code=1, options=["--tokenizer", broken]
    ).err  # fmt: skip
    assert build(capsys, tmp_path, "a.jsonl", code=2, options=["--eod", "3"]).code == 2
    assert sorted(path.name for path in tmp_path.glob("corpus*")) == []


def test_a_corpus_that_is_there_is_replaced_only_by_force(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json_lines(["abc"]))
    (tmp_path / "b.jsonl").write_text(json_lines(["defg"]))
    build(capsys, tmp_path, "a.jsonl")
    refused = build(capsys, tmp_path, "b.jsonl", code=1)
    assert "corpus.idx' is there already; give --force" in refused.err
    assert texts_of(tmp_path / "corpus") == ["abc"]
    build(capsys, tmp_path, "b.jsonl", options=["--force"])
    assert texts_of(tmp_path / "corpus") == ["defg"]


def test_info_verify_and_sample_look_inside(tmp_path, capsys):
    texts = [text for _, text in sources(200_000)]
    (tmp_path / "a.jsonl").write_text(json_lines(texts))
    prefix = tmp_path / "corpus"
    build(capsys, tmp_path, "a.jsonl")
    facts = run(capsys, "info", prefix, "--json").json
    lengths = [len(text.encode()) for text in texts]
    assert (facts["documents"], facts["tokens"], facts["longest"]) == (len(texts), sum(lengths), max(lengths))
    assert f"{sum(lengths):,} tokens of uint8" in run(capsys, "info", f"{prefix}.idx").out
    shown = run(capsys, "sample", prefix, "--document", 2, "--tokens", 30).out
    assert f"document 2 of {len(texts)}: {lengths[2]:,} tokens, the first 30\n{texts[2][:30]}" in shown
    assert len(run(capsys, "sample", prefix, "--count", 4, "--json").out.splitlines()) == 4
    assert "no document 100000" in run(capsys, "sample", prefix, "--document", 100_000).err
    assert run(capsys, "verify", prefix).out.startswith(f"{prefix}: good.")
    assert "the vocabulary ends at 99" in run(capsys, "verify", prefix, "--vocabulary", 100).err
    with open(f"{prefix}.bin", "r+b") as tokens:
        tokens.seek(12345)
        byte = tokens.read(1)
        tokens.seek(12345)
        tokens.write(bytes([byte[0] ^ 1]))
    flipped = run(capsys, "verify", prefix)
    assert flipped.code == 1 and "is not what was built: its checksum" in flipped.err
    with open(f"{prefix}.bin", "ab") as tokens:
        tokens.write(b"more")
    assert "some are not in any sequence" in run(capsys, "verify", prefix).err
    os.truncate(f"{prefix}.bin", 100)
    for name in ("info", "verify", "sample"):
        ran = run(capsys, name, prefix)
        assert ran.code == 1 and "lies outside the 100 bytes" in ran.err


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json_lines(["abc" * 100_000] * 4))
    build(capsys, tmp_path, "a.jsonl")
    shown = command("sample", tmp_path / "corpus", "--tokens", 300_000)
    assert shown.stdout.readline().startswith("--- document")
    shown.stdout.close()
    assert (shown.stderr.read(), shown.wait()) == ("", 1)


def test_the_command_finds_its_way_here(tmp_path):
    (tmp_path / "a.jsonl").write_text(json_lines(["abc"]))
    words = [KEEPSTEP, "data", "build", "--input", tmp_path / "*.jsonl", "--out", tmp_path / "new" / "corpus.bin"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/new/corpus: 1 documents, 3 tokens of uint8 (3 B)\nfrom 1 files")
    assert subprocess.run([KEEPSTEP, "data"], capture_output=True).returncode == 2
    assert subprocess.run([KEEPSTEP, "data", "biuld"], capture_output=True).returncode == 2
