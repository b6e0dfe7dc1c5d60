"""The Race tab's form: its fields and their dependencies."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio.components import Component

from decoding.records.request import MAX_LANES, SETTINGS
from decoding.records.settings import HIDDEN, OWN_PLACE, Setting

from .choices import Example, lane_choices, pair_choices, pair_named, set_here
from .forms import IN_BROWSER, QUIET, make_buttons, static_html
from .picture_form import PictureForm
from .settings import FormValues

TEN_STEPS = """<a class="sp-ten-steps" href="?lesson=ten-steps">New here? Ten steps</a>"""
UNFOLD = f"""<button type="button" class="sp-unfold" aria-expanded="false">Race your own text</button> {TEN_STEPS}"""
TIMINGS = [("Quick: 1", 1), *((str(number), number) for number in range(2, int(SETTINGS["repeats"].slider[1]) + 1))]
ASK = ("Ask the model", "Ask a question, or say what to write")
CONTINUE = ("Continue this text", "Type the beginning of a text; the models continue it")


class Form:
    """The form in its own column, collapsed on phones, with its fields wired to each other.

    ``fields`` are in the order of :data:`~decoding.records.request.SETTINGS`.
    """

    def __init__(self, first: FormValues, examples: list[Example], pairs: list, facts: str) -> None:
        fields: dict[str, Any] = {}
        special = _special_fields(first, examples, pairs)

        def row(number: int, **styles: Any) -> None:
            for name, setting in SETTINGS.items():
                if setting.row == number:
                    fields[name] = _field(setting, first[name], {**styles, **special.get(name, {})})

        with gr.Column(elem_classes="sp-form"):
            static_html(UNFOLD, elem_classes="sp-unfold-box")
            with gr.Row(elem_classes="sp-ask", equal_height=True):
                row(0)
                self.run, self.stop = make_buttons("Run", 96, run="run", stop="stop")
            with gr.Row(elem_classes="sp-ask"):
                self.example = gr.Dropdown(
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
                row(1, scale=1)
            picture = PictureForm(first["picture"], first["pair"], pairs)
            fields["picture"] = picture.field
            with gr.Row(elem_classes="sp-facts"):
                self.facts = gr.Markdown(facts, elem_id="facts")  # which models, and how long it takes
                static_html(TEN_STEPS, min_width=150)
            with gr.Accordion("Settings", open=False, elem_id="settings", elem_classes="sp-settings"):
                for number in sorted({setting.row for setting in SETTINGS.values()} - {0, 1, OWN_PLACE}):
                    with gr.Row(visible=number != HIDDEN):
                        row(number)
                cards = [f"{one.title}: [model card]({one.card}), {one.licence}." for one in pairs if one.card]
                if cards:
                    gr.Markdown(" ".join(cards), elem_id="pair-cards")
            chosen = set_here(pairs, first["pair"])
            self.set_here = gr.Markdown(chosen, visible=bool(chosen), elem_id="set-here")
            # {"text": a sentence, shown below the lanes, "left": the lanes without what it refuses}
            self.lane_fault = gr.JSON(visible=False)
            if pairs and pairs[0].note:  # the default pair is not available here
                gr.Markdown(pairs[0].note, elem_id="pair-note")
        self.fields = {name: fields[name] for name in SETTINGS}
        # The lanes, for events of the server. The list reports a change after each of them that reads it, without end.
        self.lanes = gr.JSON(first["lanes"], visible=False)
        fields["lanes"].change(js="(lanes) => [lanes]", inputs=fields["lanes"], outputs=self.lanes, **IN_BROWSER)
        self.photographs = picture.photographs
        picture.wire(fields["prompt"], fields["pair"])
        _wire_rule(fields)
        _wire_hint(fields)
        _wire_chat(fields, pairs)


def _special_fields(first: FormValues, examples: list[Example], pairs: list) -> dict[str, dict[str, Any]]:
    """What the fields of some settings have that does not follow from the setting."""
    label, placeholder = words_of_prompt(first["chat"], first["pair"], pairs)
    lanes = f"Lanes (up to {MAX_LANES}; others can be typed: Static 7)"
    return {
        "prompt": {"label": label, "placeholder": placeholder, "lines": 2, "max_lines": 2, "scale": 6},
        "lanes": {"choices": lane_choices(pairs, examples), "label": lanes, "scale": 5, "min_width": 320},
        "pair": {
            "choices": [("the default pair", ""), *pair_choices(pairs)],
            "allow_custom_value": not pairs,  # those of a backend elsewhere may be unknown
        },
        "repeats": {"choices": TIMINGS, "label": "Timings", "scale": 0, "filterable": False},
        "stop": {"elem_id": None},  # the Stop button has that name
    }


def _field(setting: Setting, value: Any, more: dict[str, Any]) -> Component:
    """The component of ``setting``; ``more`` arguments go to it."""
    note = f" ({setting.note})" if setting.note else ""
    common = {"value": value, "label": setting.label + note, "elem_id": setting.name.replace("_", "-"), **more}
    named = [(setting.words.get(name, name), name) for name in setting.choices]
    if setting.kind == "list" and setting.separator == ",":
        # Without Gradio's limit, which drops what was typed, and the focus, without a word: read_lanes says why.
        return gr.Dropdown(multiselect=True, allow_custom_value=True, **common)
    if setting.kind == "flag":
        return gr.Checkbox(**common)
    if setting.radio:
        return gr.Radio(named, **common)
    if named or "choices" in more:
        return gr.Dropdown(**{"choices": named, "min_width": 130, **common})
    if setting.slider:
        low, high, step = setting.slider
        return gr.Slider(low, high, step=step, **common)
    if setting.kind in ("whole", "number"):
        # Without Gradio's bounds, whose message names no field, or its rounding: the check of the request says more.
        return gr.Number(min_width=110, **common)
    is_name = setting.kind == "text" and setting.max_chars <= 400
    return gr.Textbox(**{"lines": 1, "max_lines": 1 if is_name else 4, **common})


# -- dependencies between the fields


def _wire_rule(fields: dict[str, Any]) -> None:
    """Keeps rule and temperature consistent, in the browser."""
    rule, temperature = inputs = [fields["rule"], fields["temperature"]]
    for event, output, js in (
        (rule.input, temperature, "(rule, t) => rule === 'greedy' ? 0 : (t > 0 ? t : 0.7)"),
        (temperature.input, rule, "(rule, t) => t > 0 ? (rule === 'greedy' ? 'coupling' : rule) : 'greedy'"),
    ):
        event(inputs=inputs, outputs=output, js=js, **IN_BROWSER)


def _wire_hint(fields: dict[str, Any]) -> None:
    """A hint below the prompt about a line break at its end, updated in the browser while typing."""
    prompt, goes_on = inputs = [fields["prompt"], fields["ignore_eos"]]
    for event, typed in ((prompt.input, "true"), (prompt.change, "false"), (goes_on.change, "false")):
        js = f"(text, goesOn) => {{ window.SpeculoscopePage.hint(text, goesOn, {typed}); }}"
        event(inputs=inputs, js=js, **IN_BROWSER)


def _wire_chat(fields: dict[str, Any], pairs: list) -> None:
    """The prompt's label says whether it is a question or the beginning of a text."""

    def name_prompt(chat: str, pair: str) -> Any:
        label, placeholder = words_of_prompt(chat, pair, pairs)
        return gr.Textbox(label=label, placeholder=placeholder)

    inputs = [fields["chat"], fields["pair"]]
    gr.on([field.change for field in inputs], name_prompt, inputs, fields["prompt"], **QUIET)


def words_of_prompt(chat: str, pair: str, pairs: list) -> tuple[str, str]:
    """Label and placeholder of the prompt's box; ``pair`` "" is the first of ``pairs``."""
    chosen, asks = pair_named(pair, pairs), SETTINGS["chat"].parse(chat)
    return ASK if (asks if asks is not None else chosen is not None and chosen.chat) else CONTINUE
