"""Texts taken out of a chat equal those of their twin, for any messages."""

from hypothesis import given
from hypothesis import strategies as st

from kvtrace._native.texts import chat_texts, joined_texts
from tests.reference import chat_texts as slow

text = st.one_of(
    st.text("ab ", max_size=9), st.text("aß", max_size=9), st.text("aß烤", max_size=9), st.text("a🍞", max_size=9)
)
content = st.one_of(
    text, st.none(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), max_size=2)
)
message = st.one_of(
    st.fixed_dictionaries({"role": st.one_of(st.just("user"), st.integers()), "content": content}),
    st.fixed_dictionaries({"content": content}),
    st.fixed_dictionaries({"role": text, "content": content}, optional={"name": text}),
    text, st.integers(),
)  # fmt: skip


@given(st.lists(message, max_size=9))
def test_the_texts_of_a_chat(messages):
    assert chat_texts(messages) == slow.chat_texts(messages)


@given(st.lists(text, max_size=9))
def test_joined_texts(texts):
    assert joined_texts(texts) == slow.joined_texts(texts)


def test_characters_at_the_edges_of_a_width():
    texts = ["\x7f", "\x80", "\xff", "\u0100", "\uffff", "\U00010000", "\U0010ffff", ""]
    assert joined_texts(texts) == slow.joined_texts(texts)
    assert joined_texts(texts)[1] == bytes([1, 1, 1, 2, 2, 4, 4, 1])
