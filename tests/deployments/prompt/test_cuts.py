"""A text in pieces has the tokens of the whole, whatever the tokenizer, wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from deployments.prompt.cuts import pieces, safe_to_cut_before
from tests.deployments.prompt.models import CORPUS, embedded, small_tokenizer

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = f"{START}user\n{END}<tool> Paris  ## <|sep|>"

# Parts of tokens and of words, blanks and what normalizers change, so that anything may be next to
# a token.
FRAGMENTS = (
    *(START, END, "<tool>", "<|sep|>", "<|", "|>", "im_start", "<|im_start", "im_end|>", "<", "_"),
    *("Paris", "Par", "is", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "a", "The capital", "##"),
    *("1234567", "don't", "naïve", "e\u0301", "\u0301", "東京", "ﬁ", "👩\u200d🚀", "\u200d", "İ"),
)
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=40).map("".join)


def with_blanks() -> Tokenizer:
    """Byte level, with a blank before every stretch, and tokens that swallow blanks."""
    tokenizer = small_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<|sep|>", rstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("Paris", single_word=True)])
    return tokenizer


def sentence_piece(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([START, END, AddedToken("<|sep|>", single_word=True)])
    tokenizer.add_tokens([AddedToken("paris", single_word=True), AddedToken("<tool>", rstrip=True)])
    return tokenizer


def llama() -> Tokenizer:
    """As the first Llamas: a normalizer puts a blank first, and there is nothing to split at."""
    tokenizer = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = BpeTrainer(vocab_size=300, special_tokens=["<unk>", START, END], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bert() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", START, END], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    word, mark = AddedToken("Paris", single_word=True), AddedToken("##", normalized=False)
    tokenizer.add_tokens([word, mark])
    return tokenizer


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": small_tokenizer,
    "byte level, with blanks": with_blanks,
    "SentencePiece, a blank everywhere": lambda: sentence_piece("always"),
    "SentencePiece, a blank first": lambda: sentence_piece("first"),
    "Llama": llama,
    "BERT": bert,
    "the embedded model": lambda: Tokenizer.from_file(str(embedded() / "tokenizer.json")),
}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return list(encoding.ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts, at_least=st.sampled_from([1, 2, 5, 30]))
def test_the_tokens_of_the_pieces_are_the_tokens_of_the_whole(
    name: str, text: str, at_least: int
) -> None:
    tokenizer = TOKENIZERS[name]
    cut = pieces(text, safe_to_cut_before(tokenizer, TEMPLATE), at_least)
    assert "".join(cut) == text
    assert [id_ for piece in cut for id_ in ids(tokenizer, piece)] == ids(tokenizer, text)


@given(text=texts, more=texts, at_least=st.sampled_from([1, 2, 5, 30]))
def test_a_continuation_of_a_text_changes_only_its_last_piece(
    text: str, more: str, at_least: int
) -> None:
    short, long = (pieces(each, (END, START), at_least) for each in (text, text + more))
    assert short[:-1] == long[: len(short) - 1]


def test_only_the_last_piece_may_be_shorter_than_the_minimum() -> None:
    assert pieces(f"ab{START}{START}{END}c", (START, END), 3) == ["ab" + START, START, END + "c"]
    assert pieces("", (START,)) == [""]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_messages_are_cut_before_in_every_tokenizer(name: str) -> None:
    assert set(safe_to_cut_before(TOKENIZERS[name], TEMPLATE)) >= {START, END}


@pytest.mark.parametrize(
    "added",
    [
        pytest.param(AddedToken("<cut>", lstrip=True), id="it swallows blanks before it"),
        pytest.param(AddedToken("<cut>", single_word=True), id="it must be a word by itself"),
        pytest.param(AddedToken("<cut>", normalized=True), id="a normalizer may make it"),
        pytest.param(AddedToken("cut", normalized=False), id="it may end a word"),
        pytest.param(AddedToken("_cut", normalized=False), id="it may end a name"),
        pytest.param(AddedToken("\n<cut>", normalized=False), id="its neighbor may swallow it"),
        pytest.param(AddedToken("<cu<cu", normalized=False), id="it may overlap itself"),
    ],
)
def test_no_text_is_cut_before_a_token_that_depends_on_its_neighbors(added: AddedToken) -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_tokens([added])
    assert safe_to_cut_before(tokenizer, added.content) == ()


@pytest.mark.parametrize("other", ["x<cut>", "x<c", "<cut>x", "x<cut>x", "<cut><cut>"])
def test_no_text_is_cut_before_a_special_token_that_another_may_contain(other: str) -> None:
    tokenizer = small_tokenizer()
    tokenizer.add_special_tokens(["<cut>"])
    assert safe_to_cut_before(tokenizer, "<cut>") == ("<cut>",)
    tokenizer.add_tokens([AddedToken(other, normalized=False)])
    assert "<cut>" not in safe_to_cut_before(tokenizer, "<cut>")


def test_only_what_the_template_mentions_is_looked_for() -> None:
    assert safe_to_cut_before(TOKENIZERS["byte level"], f"{START} and no other") == (START,)
