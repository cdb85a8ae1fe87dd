"""Chat templates of the user's that run for ever, take all memory, or write what differs in each run."""

import pytest

from kvtrace._base.errors import InputError, RowError
from kvtrace.text import templates
from kvtrace.text.templates import ChatTemplate

CONTENT = "{{ messages[0].content }}"
HELLO = [{"role": "user", "content": "boats at 0x7f00"}]


def loaded(tmp_path, source):
    (tmp_path / "chat.jinja").write_text(source + CONTENT)
    return templates.load(None, chat_template=tmp_path / "chat.jinja")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ [1]|tojson(indent=10000000000) }}",
        "{{ 'a' * 5000000 }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    ],
)
def test_a_template_that_takes_all_memory_is_refused_before_any_row(tmp_path, source):
    with pytest.raises(
        InputError, match="chat.jinja: this chat template cannot be used: for a message of one word, it writes"
    ):
        loaded(tmp_path, source)


def test_a_template_that_runs_for_ever_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "TRIAL_SECONDS", 1)
    endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match="it takes more than 1 s"):
        loaded(tmp_path, endless)


@pytest.mark.parametrize("source", ["{% for i in range(1000000000) %}{% endfor %}", "{{ ''.__class__.__mro__ }}"])
def test_the_sandbox_refuses_a_row(tmp_path, source):
    with pytest.raises(RowError, match="the chat template raised"):
        loaded(tmp_path, source).render(HELLO)


@pytest.mark.parametrize("source", ["{{ lipsum() }}", "{{ [1, 2]|random }}"])
def test_a_text_that_differs_at_each_call_is_refused(source):
    with pytest.raises(RowError, match="which gives another text at each call"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source", ["{{ messages|map('upper') }}", "{{ 'a' ~ range(3)|batch(2) }}", "{{ [cycler('a')] }}", "{{ lipsum }}"]
)
def test_a_memory_address_is_refused_and_one_in_a_message_is_not(source):
    with pytest.raises(RowError, match="prints an object"):
        ChatTemplate(source + CONTENT).render(HELLO)
    assert ChatTemplate(CONTENT).render(HELLO) == "boats at 0x7f00"


def test_a_row_s_text_is_in_no_error(tmp_path):
    with pytest.raises(RowError) as error:
        ChatTemplate("{{ messages|map('upper') }}" + CONTENT).render(HELLO)
    assert "boats" not in str(error.value)
