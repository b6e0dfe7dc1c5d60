"""The Race tab's form: its fields and their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from decoding.records.request import MAX_LANES

from .buttons import make_buttons
from .choices import Example, lane_choices, pair_choices
from .settings import CHAT, DTYPES, FIELDS, MAX_FORM_REPEATS, MAX_TEMPERATURE, MIN_TOP_P, Settings

UNFOLD = """<button type="button" class="sp-unfold" aria-expanded="false">Race your own text</button>"""
RULE_LABELS = [
    ("greedy: both models' first choices must agree", "greedy"),
    ("coupling: same noise for both models, so every lane writes the same text", "coupling"),
    ("sampling: speculative sampling; lanes may differ in text", "sampling"),
]


CHAT_LABELS = [
    ("the pair's default", ""),
    ("a question to the model (chat template)", "ask"),
    ("a text to continue", "continue"),
]
WEIGHTS_LABELS = [("auto", "auto"), ("int4 (on a CPU)", "int4")]
ASK = ("Ask the model", "Ask a question, or say what to write")
CONTINUE = ("Continue this text", "Type the beginning of a text; the models continue it")


@dataclass(slots=True)
class Form:
    """The form's components; ``fields`` are in the order of :data:`viz.settings.FIELDS`."""

    fields: dict[str, Any]
    example: gr.Dropdown
    run: gr.Button
    stop: gr.Button


def build_form(first: Settings, examples: list[Example], pairs: list) -> Form:
    """The form in its own column, collapsed on phones, with its fields wired to each other."""
    with gr.Column(elem_classes="sp-form"):
        gr.HTML(html_template=UNFOLD, js_on_load=None, apply_default_css=False, elem_classes="sp-unfold-box")
        form = _build_form(first, examples, pairs)
        if pairs and pairs[0].note:  # the default pair is not available here
            gr.Markdown(pairs[0].note, elem_id="pair-note")
    _wire_rule(form)
    _wire_hint(form)
    _wire_chat(form, pairs)
    return form


# Number fields have no bounds of Gradio's, whose message would not name the field; the check of the request does.


def _build_form(first: Settings, examples: list[Example], pairs: list) -> Form:
    label, placeholder = words_of_prompt(first.chat, first.pair, pairs)
    with gr.Row(elem_classes="sp-ask", equal_height=True):
        prompt = gr.Textbox(
            first.prompt,
            label=label,
            lines=2,
            max_lines=2,
            scale=6,
            elem_id="prompt",
            placeholder=placeholder,
        )
        run, stop = make_buttons("Run", 96, run="run", stop="stop")
    with gr.Row(elem_classes="sp-ask"):
        example = gr.Dropdown(
            [one.title for one in examples],
            value=examples[0].title if examples else None,
            label="Examples",
            type="index",
            scale=2,
            min_width=190,
            filterable=False,
            interactive=True,
            elem_id="example",
        )
        lanes = gr.Dropdown(
            lane_choices(pairs, examples),
            value=first.lanes,
            label=f"Lanes (up to {MAX_LANES}; others can be typed: Static 7)",
            multiselect=True,
            allow_custom_value=True,
            max_choices=MAX_LANES,
            scale=5,
            min_width=320,
            elem_id="lanes",
        )
        max_new_tokens = gr.Number(
            first.max_new_tokens,
            label="New tokens",
            precision=0,
            scale=1,
            min_width=110,
            elem_id="max-new-tokens",
        )
    with gr.Accordion("Settings", open=False, elem_id="settings", elem_classes="sp-settings"):
        rest = _build_rest(first, pairs)
    fields = {"prompt": prompt, "lanes": lanes, "max_new_tokens": max_new_tokens, **rest}
    return Form({name: fields[name] for name in FIELDS}, example, run, stop)


def _build_rest(first: Settings, pairs: list) -> dict[str, Any]:
    """The rarer settings, in a collapsed section."""
    choices = [("the default pair", ""), *pair_choices(pairs)]
    with gr.Row():
        rule = gr.Radio(RULE_LABELS, value=first.rule, label="Acceptance rule", elem_id="rule")
        temperature = gr.Slider(
            0, MAX_TEMPERATURE, value=first.temperature, step=0.05, label="Temperature", elem_id="temperature"
        )
    with gr.Row():
        seed = gr.Number(first.seed, label="Seed", precision=0, min_width=110)
        repeats = gr.Slider(1, MAX_FORM_REPEATS, value=first.repeats, step=1, label="Timing repeats")
        top_k = gr.Number(first.top_k, label="Top-k (0: off)", precision=0, min_width=110)
        top_p = gr.Slider(MIN_TOP_P, 1, value=first.top_p, step=0.01, label="Top-p (1: off)")
        dtype = gr.Dropdown(list(DTYPES), value=first.dtype, label="Number format (dtype)", min_width=130)
        weights = gr.Dropdown(
            WEIGHTS_LABELS, value=first.weights, label="Weights of the target", min_width=130, elem_id="weights"
        )
    with gr.Row():
        pair = gr.Dropdown(
            choices,
            value=first.pair,
            label="Pair of models",
            allow_custom_value=not pairs,  # those of a backend elsewhere may be unknown
            elem_id="pair",
        )
        target = gr.Textbox(first.target, label="or your own target (folder or Hub id)", max_lines=1)
        draft = gr.Textbox(first.draft, label="with this draft (folder or Hub id)", max_lines=1)
    cards = [f"{one.title}: [model card]({one.card}), {one.licence}." for one in pairs if one.card]
    if cards:
        gr.Markdown(" ".join(cards), elem_id="pair-cards")
    with gr.Row():
        stop = gr.Textbox(first.stop, label="Stop strings, one per line", lines=1, max_lines=4)
        ignore_eos = gr.Checkbox(first.ignore_eos, label="Continue after the end-of-text token")
    with gr.Row():
        chat = gr.Radio(CHAT_LABELS, value=first.chat, label="Kind of prompt", elem_id="chat")
        system = gr.Textbox(
            first.system,
            label="System message of a chat (empty: the model's default)",
            lines=1,
            max_lines=4,
            elem_id="system",
        )
    return {
        "rule": rule,
        "temperature": temperature,
        "seed": seed,
        "repeats": repeats,
        "top_k": top_k,
        "top_p": top_p,
        "dtype": dtype,
        "weights": weights,
        "pair": pair,
        "target": target,
        "draft": draft,
        "stop": stop,
        "ignore_eos": ignore_eos,
        "chat": chat,
        "system": system,
    }


# -- dependencies between the fields


def _wire_rule(form: Form) -> None:
    """Keeps rule and temperature consistent, in the browser."""
    rule, temperature = form.fields["rule"], form.fields["temperature"]
    rule.input(
        fn=None,
        inputs=[rule, temperature],
        outputs=temperature,
        api_visibility="private",
        js="(rule, t) => rule === 'greedy' ? 0 : (t > 0 ? t : 0.7)",
    )
    temperature.input(
        fn=None,
        inputs=[rule, temperature],
        outputs=rule,
        api_visibility="private",
        js="(rule, t) => t === 0 ? 'greedy' : (rule === 'greedy' ? 'coupling' : rule)",
    )


def _wire_hint(form: Form) -> None:
    """A hint below the prompt about a line break at its end, updated in the browser while typing."""
    prompt, goes_on = inputs = [form.fields["prompt"], form.fields["ignore_eos"]]
    for event, typed in ((prompt.input, "true"), (prompt.change, "false"), (goes_on.change, "false")):
        event(
            fn=None,
            inputs=inputs,
            api_visibility="private",
            js=f"(text, goesOn) => {{ window.SpeculoscopePage.hint(text, goesOn, {typed}); }}",
        )


def _wire_chat(form: Form, pairs: list) -> None:
    """The prompt's label says whether it is a question or the beginning of a text."""

    def name_prompt(chat: str, pair: str) -> Any:
        label, placeholder = words_of_prompt(chat, pair, pairs)
        return gr.Textbox(label=label, placeholder=placeholder)

    inputs = [form.fields["chat"], form.fields["pair"]]
    gr.on(
        [field.change for field in inputs],
        name_prompt,
        inputs=inputs,
        outputs=form.fields["prompt"],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )


def words_of_prompt(chat: str, pair: str, pairs: list) -> tuple[str, str]:
    """Label and placeholder of the prompt's box; ``pair`` "" is the first of ``pairs``."""
    chosen = next((one for one in pairs if one.name == pair), None) if pair else next(iter(pairs), None)
    asks = CHAT.get(chat)
    return ASK if (asks if asks is not None else chosen is not None and chosen.chat) else CONTINUE
