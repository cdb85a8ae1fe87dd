"""The words in bytes equal those of their twin, however the bytes are cut."""

from hypothesis import given
from hypothesis import strategies as st

from kvtrace.formats.seen_words import IN_WORDS, MAX_WORD, Words
from tests.reference.words import words as slow_words

pieces = st.lists(
    st.lists(st.sampled_from([b"a", b"bc", b"\xff", b"\\", b" ", b"12345678", b'", "', b"[", b"abc" * 20]))
)


def found(data):
    words = Words()
    for piece in data:
        words.write(piece)
    return words.words


@given(pieces)
def test_words_equal_those_of_the_twin_however_the_bytes_are_cut(parts):
    data = [b"".join(part) for part in parts]
    assert found(data) == slow_words(b"".join(data), set(IN_WORDS.nonzero()[0].tolist()))


def test_more_new_words_than_usual_are_all_found():
    data = b" ".join(
        b"%s" % "".join(map(chr, (97 + i // 676, 97 + i // 26 % 26, 97 + i % 26))).encode() for i in range(5000)
    )
    assert found([data]) == set(data.split())


def test_only_the_end_of_a_very_long_word_is_kept():
    assert [len(word) for word in found([b"a" * 3000, b"b" * 10])] == [MAX_WORD]
