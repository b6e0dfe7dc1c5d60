"""Display text: lossless, also if characters are split over tokens."""

from hypothesis import given
from hypothesis import strategies as st

from decoding.records.text import pieces, whole_text
from decoding.records.trace import TokenText


def tokens_of(chunks: list[bytes]) -> dict[int, TokenText]:
    vocab = {}
    for index, chunk in enumerate(chunks):
        try:
            vocab[index] = TokenText(chunk.decode("utf-8"))
        except UnicodeDecodeError:
            vocab[index] = TokenText("\ufffd", bytes=chunk.hex())
    return vocab


@given(st.text(max_size=60), st.lists(st.integers(0, 200), max_size=30))
def test_any_split_of_any_text_is_shown_without_loss(text, cuts):
    data = text.encode("utf-8")
    edges = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    chunks = [data[low:high] for low, high in zip(edges, edges[1:])]
    shown = pieces(range(len(chunks)), tokens_of(chunks))
    assert len(shown) == len(chunks)
    assert "".join(shown) == text


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=12))
def test_any_bytes_at_all_decode_as_python_would(chunks):
    vocab = {index: TokenText("\ufffd", bytes=chunk.hex()) for index, chunk in enumerate(chunks)}
    assert whole_text(range(len(chunks)), vocab) == b"".join(chunks).decode("utf-8", "replace")


def test_a_character_stands_at_the_token_that_completes_it():
    vocab = tokens_of([b"a", b"\xf0\x9f", b"\x98\x80", b"b"])
    assert pieces([0, 1, 2, 3], vocab) == ["a", "", "😀", "b"]


def test_a_character_that_never_completes_is_marked():
    vocab = tokens_of([b"a", b"\xf0\x9f", b"b"])
    assert pieces([0, 1, 2], vocab) == ["a", "", "\ufffdb"]
    assert pieces([0, 1], vocab) == ["a", "\ufffd"]


def test_unknown_ids_and_broken_hex_are_marked():
    assert pieces([7, 0], {0: TokenText("x", bytes="zz")}) == ["\ufffd", "\ufffd"]
