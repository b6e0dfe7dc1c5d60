"""Prompts as messages to a chat model: the request, the template, the ends of texts, and what is shown."""

from dataclasses import replace

import gradio as gr
import pytest
from transformers import AutoTokenizer

from decoding.engines.pair import Pair, load_pair
from decoding.engines.tokenizer import Tokenizer
from decoding.errors import UserError
from decoding.records.pairs import PairDescription, is_asked
from decoding.records.request import CompareRequest, request_from_dict
from decoding.records.text import pieces, whole_text
from decoding.records.trace import TokenText
from tests.tiny_models import make_model
from tests.toy import quick_run
from viz.player.payload import run_payload
from viz.race_form import Form
from viz.settings import form_of

TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<be kind>{% endif %}"
    "<{{ m.role }}:{{ m.content }}>{% endfor %}{% if add_generation_prompt %}<assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_model(tmp_path_factory.mktemp("models") / "small")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pair(folder) -> Pair:
    return load_pair(target=str(folder), draft=str(folder), dtype="float32", device="cpu")


def test_the_prompt_goes_through_the_template_where_asked_for(pair):
    def shown(*args):
        return pair.tokenizer.decode(pair.encode_prompt(*args).ids)

    assert not pair.chat  # a pair without a description is for plain texts
    assert shown("hi") == shown("hi", False) == "hi"
    assert shown("hi", True) == "<be kind><user:hi><assistant:"
    assert shown("hi", True, "Answer in rhyme.") == "<system:Answer in rhyme.><user:hi><assistant:"
    pair.chat = True
    try:
        assert shown("hi").endswith("<user:hi><assistant:") and shown("hi", False) == "hi"
    finally:
        pair.chat = False


@pytest.mark.parametrize("typed", ["<s>", "a<s>b", "  <s>\n</s>", "x<s>", "plain"])
def test_what_a_visitor_types_never_becomes_a_special_token(pair, typed):
    special = set(pair.tokenizer.eos_ids)
    own = [id for id in pair.encode_prompt("hi", True).ids if id in special]  # those of the template
    asked = (pair.encode_prompt(typed), pair.encode_prompt(typed, True), pair.encode_prompt("hi", True, typed))
    for ids in (prompt.ids for prompt in asked):
        assert [id for id in ids if id in special] in ([], own)
    assert pair.tokenizer.decode(pair.encode_prompt(typed).ids) == typed
    assert pair.tokenizer.decode(pair.encode_prompt(typed, True).ids) == f"<be kind><user:{typed}><assistant:"
    text = pair.tokenizer.decode(pair.encode_prompt(typed, True, typed).ids)
    assert text == f"<system:{typed}><user:{typed}><assistant:"
    assert pair.tokenizer.eos_ids & set(pair.tokenizer.encode("<s>"))  # it is a special token if a template writes it


def test_what_cannot_be_is_a_sentence(pair, tmp_path):
    with pytest.raises(UserError, match="takes no system message"):
        pair.encode_prompt("hi", None, "Be kind.")
    with pytest.raises(UserError, match="A system message is part of a chat"):
        request_from_dict({"prompt": "hi", "chat": False, "system": "Be kind."})
    plain = make_model(tmp_path / "plain")
    with pytest.raises(UserError, match="has no chat template: let it continue the text instead"):
        load_pair(target=str(plain), draft=str(plain), device="cpu").encode_prompt("hi", True)
    refusing = AutoTokenizer.from_pretrained(plain)
    assert Tokenizer(refusing).chat("hi") == "hi"
    refusing.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(UserError, match="does not accept these messages .no system role"):
        Tokenizer(refusing).chat("hi", "Be kind.")


def test_special_tokens_are_left_out_of_texts_and_shown_on_demand(pair):
    end = next(iter(pair.tokenizer.eos_ids))
    entry = pair.tokenizer.token_text(end)
    assert entry.special and entry.text == "<s>"
    vocab = {end: entry, 7: TokenText("x")}
    assert pieces([7, end], vocab) == ["x", ""] and whole_text([7, end], vocab, special=True) == "x<s>"
    assert not pair.tokenizer.token_text(pair.encode_prompt("x").ids[0]).special


def test_the_page_shows_the_template_on_demand_and_begins_the_answer_on_a_line_of_its_own(pair):
    end = next(iter(pair.tokenizer.eos_ids))
    name = pair.tokenizer.token_text(end).text
    pair.tokenizer._hf.chat_template = f"{name}{TEMPLATE}"  # as many templates begin
    try:
        asked = run_payload(quick_run(["static:2"], pair, "hi", chat=True))
    finally:
        pair.tokenizer._hf.chat_template = TEMPLATE
    assert asked["read"] == [[name, True], ["<be kind><user:hi><assistant:", False]] and asked["prompt"] == "hi\n"
    plain = run_payload(quick_run(["static:2"], pair, "hi"))
    assert (plain["read"], plain["prompt"]) == ([], "hi")
    assert is_asked(None, "smollm2") and not is_asked(None, "nobody knows") and not is_asked(None, "../models")
    assert not is_asked(None, "x" * 400)  # longer than a file may be called


def test_the_text_ends_with_the_message(pair):
    pair.tokenizer.eos_ids = frozenset(range(pair.target.vocab_size))  # whatever it says ends it
    run = quick_run(["static:2"], pair, "hi", chat=True)
    assert run.lanes[0].finish == "eos" and len(run.lanes[0].output) == 1
    assert run_payload(run)["lanes"][0]["ends"]


def test_the_form_says_why_another_pair_serves_and_names_cards():
    plain = PairDescription("p", "P", "embedded", "t", {"d": "d"}, "d")
    small, chat = replace(plain, note="The big one is missing."), replace(plain, title="Chat", card="c", licence="MIT")

    def said(pairs) -> dict[str, str]:
        with gr.Blocks() as page:
            Form(form_of(CompareRequest("")), [], pairs, "")
        return {one.elem_id: one.value for one in page.blocks.values() if isinstance(one, gr.Markdown) and one.value}

    assert said([small, chat]) == {"pair-note": "The big one is missing.", "pair-cards": "Chat: [model card](c), MIT."}
    assert said([plain]) == {}
