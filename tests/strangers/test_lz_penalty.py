"""The LZ penalty: against a slow reference that is like its definition, and in `generate` with a model that loops."""

import math
import os

import pytest
import torch

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def strangers(packages):
    """transformers is in the strangers' folder; here it is used by the tests themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(os.environ["PYTHONPATH"])
        yield


def penalty(*args, **kwargs):
    from keepstep.integrations.transformers import LZPenalty

    return LZPenalty(*args, **kwargs)


def bits_saved(sequence, token, vocabulary, window, buffer):
    """For one token of the vocabulary: every place in the window is tried, match lengths are counted one by one."""
    seen = sequence[-window:]
    longest, nearest = 0, None
    for place in range(buffer, len(seen)):
        if seen[place] != token:
            continue
        length = 1
        while length <= buffer and seen[place - length] == seen[-length]:
            length += 1
        if length >= longest:  # a later place is a nearer one
            longest, nearest = length, len(seen) - place
    new = math.log2(vocabulary)
    return 0.0 if nearest is None else new - min(math.log2(nearest), new)


def reference(ids, scores, alpha=0.15, window=512, buffer=32, prompt_ignore_length=0):
    rows = []
    for sequence, row in zip(ids.tolist(), scores.tolist(), strict=True):
        counted = sequence[prompt_ignore_length:]
        rows.append([score - alpha * bits_saved(counted, token, len(row), window, buffer)
                     for token, score in enumerate(row)])  # fmt: skip
    return torch.tensor(rows)


@pytest.mark.parametrize("seed", range(60))
def test_it_equals_the_definition(seed):
    random = torch.Generator().manual_seed(seed)

    def between(low, high):
        return int(torch.randint(low, high + 1, (), generator=random))

    vocabulary, buffer = between(1, 40), between(1, 12)
    options = {"alpha": between(0, 20) / 10, "window": buffer + between(1, 60), "buffer": buffer,
               "prompt_ignore_length": between(0, 5)}  # fmt: skip
    batch, length = between(1, 4), between(1, 120)
    ids = torch.randint(0, between(1, vocabulary), (batch, length), generator=random)
    scores = torch.randn(batch, vocabulary, generator=random)
    torch.testing.assert_close(penalty(**options)(ids, scores), reference(ids, scores, **options), msg=str(options))


def test_it_equals_the_definition_with_the_default_window():
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 6, (2, 700), generator=random)
    ids[0, 600:] = ids[0, 400:500]  # a long repetition
    scores = torch.randn(2, 50, generator=random)
    torch.testing.assert_close(penalty()(ids, scores), reference(ids, scores))


def test_an_example_by_hand():
    """a b c a b: c would end the repetition, 3 places back; a is 2 places back; b, 1; d is new and costs 2 bits."""
    ids, scores = torch.tensor([[0, 1, 2, 0, 1]]), torch.zeros(1, 4)
    expected = [-(2 - math.log2(2)), -(2 - math.log2(1)), -(2 - math.log2(3)), 0]
    torch.testing.assert_close(penalty(alpha=1, window=5, buffer=1)(ids, scores), torch.tensor([expected]))


def test_of_two_places_the_one_with_the_longer_match_counts():
    """The newest tokens are 1 2. After 1 2 the token 3 is 9 places back; after another token, 3 places back."""
    ids = torch.tensor([[9, 9, 1, 2, 3, 9, 9, 9, 9, 9, 3, 1, 2]])
    found = penalty(alpha=1, window=13, buffer=2)(ids, torch.zeros(1, 16))
    assert found[0, 3] == -(4 - math.log2(9)) and found[0, 4] == 0


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_sequence_that_fits_into_the_buffer_is_not_penalized(length):
    ids, scores = torch.ones(2, length, dtype=torch.long), torch.randn(2, 8)
    assert torch.equal(penalty(alpha=1, window=8, buffer=4)(ids, scores), scores)


def test_rows_do_not_influence_each_other_and_the_arguments_stay_as_they_are():
    random = torch.Generator().manual_seed(3)
    ids, scores = torch.randint(0, 5, (4, 80), generator=random), torch.randn(4, 5, generator=random)
    before = ids.clone(), scores.clone()
    lz = penalty(alpha=1, window=40, buffer=3)
    together = lz(ids, scores)
    assert torch.equal(together, torch.cat([lz(ids[row : row + 1], scores[row : row + 1]) for row in range(4)]))
    assert torch.equal(ids, before[0]) and torch.equal(scores, before[1])


def test_a_prompt_that_is_ignored_counts_for_nothing_not_even_its_padding():
    random = torch.Generator().manual_seed(4)
    said, scores = torch.randint(0, 5, (1, 50), generator=random), torch.randn(1, 256, generator=random)
    prompt, padding = torch.randint(0, 8, (1, 20), generator=random), torch.full((1, 20), 7)
    plain = penalty(alpha=1, buffer=2)
    ignoring = penalty(alpha=1, buffer=2, prompt_ignore_length=20)
    for begin in (prompt, padding):
        assert torch.equal(ignoring(torch.cat([begin, said], 1), scores), plain(said, scores))
        assert not torch.equal(plain(torch.cat([begin, said], 1), scores), plain(said, scores))


def test_tokens_that_another_processor_excluded_stay_excluded_in_half_precision_too():
    ids, scores = torch.tensor([[0, 1, 2] * 20]), torch.zeros(1, 8, dtype=torch.bfloat16)
    scores[0, 0] = -math.inf
    found = penalty(alpha=1)(ids, scores)
    assert found.dtype == torch.bfloat16 and found[0, 0] == -math.inf and not found.isnan().any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, r"alpha is -0.1; pass a finite number, 0 or more"),
        ({"alpha": math.nan}, r"alpha is nan; pass"),
        ({"buffer": 0}, r"buffer is 0; pass 1 or more"),
        ({"window": 32}, r"window of 32 tokens has no room .* longer than the buffer"),
        ({"prompt_ignore_length": -1}, r"prompt_ignore_length is -1; pass 0 or more"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(Exception, match=f"^LZPenalty: .*{message}"):
        penalty(**options)


def test_a_wrong_shape_is_named():
    with pytest.raises(Exception, match=r"^LZPenalty: input_ids has the shape \[2, 5\] and scores \[3, 8\]; pass"):
        penalty()(torch.zeros(2, 5, dtype=torch.long), torch.zeros(3, 8))


# ---- generate ----


PHRASE = 7


@pytest.fixture(scope="module")
def model():
    """Untrained, but its last layer expects the next token of a phrase: 0 to 6, 7 to 13, ... are phrases."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=1001, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    of_phrases = model.model.embed_tokens.weight.data.view(-1, PHRASE, config.hidden_size)
    model.lm_head.weight.data = of_phrases.roll(1, dims=1).flatten(0, 1)
    return model


def continued(model, prompts, **options):
    """What follows the prompts in 300 steps of greedy decoding."""
    mask = (prompts != 0).long()
    found = model.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=300, **options)
    return found[:, prompts.shape[1] :].tolist()


def loop_at_the_end(tokens, longest=100):
    """The period with which the last 2 * `longest` tokens repeat; None: with none up to `longest`."""
    end = tokens[-2 * longest :]
    return next((p for p in range(1, longest + 1) if end[p:] == end[:-p]), None)


def test_greedy_decoding_loops_without_it_and_not_with_it(model):
    prompts = torch.tensor([[11, 12, 13], [500, 3, 77]])
    assert [loop_at_the_end(row) for row in continued(model, prompts)] == [PHRASE, PHRASE]
    found = continued(model, prompts, logits_processor=[penalty()])
    assert [loop_at_the_end(row) for row in found] == [None, None], found


def test_a_prompt_in_a_padded_batch_is_continued_as_alone(model):
    padded = torch.tensor([[0, 0, 500, 3, 77], [11, 12, 13, 14, 15]])
    together = continued(model, padded, logits_processor=[penalty(prompt_ignore_length=5)])
    alone = continued(model, padded[:1, 2:], logits_processor=[penalty(prompt_ignore_length=3)])
    assert together[:1] == alone
