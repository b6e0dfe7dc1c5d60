"""The Race tab: the form, Run and Stop, and the view in which the player, the take-along and the plots live."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from decoding.backends.base import Backend
from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.request import MAX_LANES
from decoding.records.trace import Run

from .buttons import idle, make_buttons, running, stopping
from .choices import Example, default_lanes, find_examples, lane_choices, pair_choices
from .desk import answers
from .player.payload import player_payload
from .session import Visits, race_feed, told
from .settings import (
    CHAT,
    DTYPES,
    FIELDS,
    MAX_FORM_REPEATS,
    MAX_TEMPERATURE,
    MIN_TOP_P,
    Settings,
    asked,
    read_settings,
    settings_of,
)
from .store import RunStore
from .visitors import address_of

TASK = "race"
TEMPLATE = """<div class="speculoscope">
<div class="sp-status" role="status" aria-live="polite" hidden></div>
<div class="sp-player"></div>
<div class="sp-take" role="group" aria-label="Take it along"></div>
<section class="sp-plots" aria-label="Plots of this run"></section>
</div>"""
UNFOLD = """<button type="button" class="sp-unfold" aria-expanded="false">Race a text of your own</button>"""
RULE_LABELS = [
    ("greedy: both models' first choices must agree", "greedy"),
    ("coupling: same noise for both, so every lane writes the same text", "coupling"),
    ("sampling: speculative sampling; lanes may differ in text", "sampling"),
]


CHAT_LABELS = [
    ("as the pair is meant", ""),
    ("a question to the model (chat template)", "ask"),
    ("a text to continue", "continue"),
]
ASK = ("Ask the model", "Ask a question, or say what to write")
CONTINUE = ("Continue this text", "Type the beginning of a text; the models go on from there")


def race_view(value: str, functions: list) -> gr.HTML:
    """Player, take-along and plots in one component; its value is the latest delta as JSON text.

    The template is static: nothing that a user or a model wrote is ever part of it. (No subclass of gr.HTML:
    Gradio writes a .pyi file beside the module of every subclass.)
    """
    return gr.HTML(
        value,
        elem_id="race",
        html_template=TEMPLATE,
        js_on_load="window.SpeculoscopePage.race(element, props, watch, server, trigger);",
        apply_default_css=False,
        server_functions=functions,
    )


@dataclass(slots=True)
class Form:
    """The form's components; ``fields`` are in the order of :data:`viz.settings.FIELDS`."""

    fields: dict[str, Any]
    example: gr.Dropdown
    run: gr.Button
    stop: gr.Button


def build_race_tab(
    page: gr.Blocks, backend: Backend, recorded: RecordedBackend, store: RunStore, visits: Visits
) -> None:
    """Put the tab's components into ``page``, whose context is open, and wire them."""
    examples = find_examples(recorded)
    pairs = backend.pairs()
    first = Settings(prompt=examples[0].prompt if examples else "", lanes=default_lanes(pairs))
    with gr.Column(elem_classes="sp-form"):
        gr.HTML(html_template=UNFOLD, js_on_load=None, apply_default_css=False, elem_classes="sp-unfold-box")
        form = _build_form(first, examples, pairs)
    view = race_view(_first_value(store, examples), answers(store, visits))
    fields = list(form.fields.values())
    names = [pair.name for pair in pairs]
    _wire_run(form, fields, view, visits, backend, store)
    _wire_examples(form, fields, view, store, examples, names)
    _wire_opened(form, fields, view, store, names)
    _wire_rule(form)
    _wire_hint(form)
    _wire_chat(form, pairs)
    _wire_memory(page, form, fields, view, first, names, store)


# Numbers have no bounds of Gradio's: its refusal would not say which field it means; the check of the request does.


def _build_form(first: Settings, examples: list[Example], pairs: list) -> Form:
    label, placeholder = _words_of_prompt(first.chat, first.pair, pairs)
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
            lane_choices(pairs),
            value=first.lanes,
            label=f"Lanes (up to {MAX_LANES}; others can be typed)",
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
    """The rarer settings, folded away."""
    choices = [("the default pair", ""), *pair_choices(pairs)]
    with gr.Row():
        rule = gr.Radio(RULE_LABELS, value=first.rule, label="Rule by which a guess is accepted", elem_id="rule")
        temperature = gr.Slider(
            0, MAX_TEMPERATURE, value=first.temperature, step=0.05, label="Temperature", elem_id="temperature"
        )
    with gr.Row():
        seed = gr.Number(first.seed, label="Seed", precision=0, min_width=110)
        repeats = gr.Slider(1, MAX_FORM_REPEATS, value=first.repeats, step=1, label="Repeats of the timing")
        top_k = gr.Number(first.top_k, label="Top-k (0: off)", precision=0, min_width=110)
        top_p = gr.Slider(MIN_TOP_P, 1, value=first.top_p, step=0.01, label="Top-p (1: off)")
        dtype = gr.Dropdown(list(DTYPES), value=first.dtype, label="Number format (dtype)", min_width=130)
    with gr.Row():
        pair = gr.Dropdown(choices, value=first.pair, label="Pair of models", elem_id="pair")
        target = gr.Textbox(first.target, label="or a target of your own (folder or Hub id)", max_lines=1)
        draft = gr.Textbox(first.draft, label="with this draft (folder or Hub id)", max_lines=1)
    with gr.Row():
        stop = gr.Textbox(first.stop, label="Stop strings, one a line", lines=1, max_lines=4)
        ignore_eos = gr.Checkbox(first.ignore_eos, label="Go on after the end-of-text token")
    with gr.Row():
        chat = gr.Radio(CHAT_LABELS, value=first.chat, label="What the prompt is", elem_id="chat")
        system = gr.Textbox(
            first.system,
            label="System message of a chat (empty: the model's own)",
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
        "pair": pair,
        "target": target,
        "draft": draft,
        "stop": stop,
        "ignore_eos": ignore_eos,
        "chat": chat,
        "system": system,
    }


# -- what the view is told -------------------------------------------------------------------------------------


def _example_delta(store: RunStore, example: Example) -> Any:
    """The recorded run of ``example``, with what to notice in it; nothing where it was not recorded."""
    if not example.recording:
        return gr.skip()
    run = store.get(example.recording)
    return told("finished", payload=player_payload(run, origin="recorded", shows=example.shows, point=example.point))


def _first_value(store: RunStore, examples: list[Example]) -> str:
    """The run that plays before anything was asked for, "" where none is shipped."""
    first = next((example for example in examples if example.recording), None)
    return _example_delta(store, first) if first else ""


def _made_by(run: Run, names_of_pairs: list[str]) -> list:
    """The form's values that make ``run`` again; fields that cannot show what it was made with keep their defaults."""
    settings, _ = read_settings(asdict(settings_of(asked(run))), Settings(), "run", names_of_pairs)
    return list(asdict(settings).values())


# -- wires -----------------------------------------------------------------------------------------------------


def _wire_run(form: Form, fields: list, view: gr.HTML, visits: Visits, backend: Backend, store: RunStore) -> None:
    async def race(visitor: gr.Request, *values: Any) -> AsyncIterator[tuple]:
        yield gr.skip(), *running()
        try:
            request = Settings(**dict(zip(FIELDS, values))).request()
        except (UserError, TypeError, ValueError) as error:
            yield told("failed", message=_sentence(error)), gr.skip(), gr.skip()
        else:
            feed = race_feed(backend, store, request)
            async for delta in visits.deltas(feed, visitor.session_hash or "", TASK, address_of(visitor)):
                yield delta, gr.skip(), gr.skip()
        yield gr.skip(), *idle()

    def stop(visitor: gr.Request) -> dict[str, Any]:
        visits.stop(visitor.session_hash or "", TASK)
        return stopping()

    gr.on(
        [form.run.click, form.fields["prompt"].submit],
        race,
        inputs=fields,
        outputs=[view, form.run, form.stop],
        show_progress="hidden",
        concurrency_limit=None,
        concurrency_id="race",
        api_visibility="private",
        trigger_mode="once",
    )
    form.stop.click(stop, None, form.stop, queue=False, show_progress="hidden", api_visibility="private")


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else "A setting of the form is missing or of the wrong kind."


def _wire_examples(
    form: Form, fields: list, view: gr.HTML, store: RunStore, examples: list[Example], names_of_pairs: list[str]
) -> None:
    prompt = form.fields["prompt"]
    nothing = [gr.skip()] * (len(fields) + 2)

    def open_example(index: int) -> list:
        example = examples[index]
        if example.recording:
            values = _made_by(store.get(example.recording), names_of_pairs)
        else:
            values = [gr.skip()] * len(fields)
            values[FIELDS.index("lanes")] = example.lanes or gr.skip()
        values[FIELDS.index("prompt")] = example.prompt
        return [*values, _example_delta(store, example), index]

    def choose(index: int | None, shown: int, text: str) -> list:
        # Gradio tells of input too when the list is merely left; what was typed since must not be lost then.
        is_one = isinstance(index, int) and 0 <= index < len(examples)
        return open_example(index) if is_one and index != shown else nothing

    def choose_again(index: int | None, shown: int, text: str) -> list:
        # Of a selection it tells only when an option is clicked: the one chosen last too, to have its text back.
        is_same = isinstance(index, int) and index == shown < len(examples)
        return open_example(index) if is_same and text != examples[index].prompt else nothing

    shown = gr.State(0)  # the example chosen last: the form opens with the first one
    for event, act in ((form.example.input, choose), (form.example.select, choose_again)):
        event(
            act,
            [form.example, shown, prompt],
            [*fields, view, shown],
            show_progress="hidden",
            concurrency_limit=None,
            api_visibility="private",
        )
    # A text of one's own is no example.
    prompt.input(fn=None, js="() => null", outputs=form.example, api_visibility="private")


def _wire_opened(form: Form, fields: list, view: gr.HTML, store: RunStore, names_of_pairs: list[str]) -> None:
    """A run file that was opened sets the form to what made it."""

    def fill(event: gr.EventData) -> list:
        try:
            return [*_made_by(store.get(event.run), names_of_pairs), None]
        except (UserError, AttributeError):  # it is on screen; its form is all that is missing
            return [gr.skip()] * (len(fields) + 1)

    view.select(
        fill,
        None,
        [*fields, form.example],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )


def _wire_rule(form: Form) -> None:
    """Rule and temperature go together; in the browser, without asking the server."""
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
    """Below the prompt, as it is typed: what a line break at its end may do. In the browser."""
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
        label, placeholder = _words_of_prompt(chat, pair, pairs)
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


def _words_of_prompt(chat: str, pair: str, pairs: list) -> tuple[str, str]:
    """Label and placeholder of the prompt's box; ``pair`` "" is the first of ``pairs``."""
    chosen = next((one for one in pairs if one.name == pair), None) if pair else next(iter(pairs), None)
    asks = CHAT.get(chat)
    return ASK if (asks if asks is not None else chosen is not None and chosen.chat) else CONTINUE


def _wire_memory(
    page: gr.Blocks,
    form: Form,
    fields: list,
    view: gr.HTML,
    first: Settings,
    names_of_pairs: list[str],
    store: RunStore,
) -> None:
    """The browser keeps the settings; a link is read instead of them. Both are checked like anything from outside."""
    memory = gr.BrowserState({}, storage_key="speculoscope-settings", secret="not-a-secret")
    names = json.dumps(list(FIELDS))
    gr.on(
        [field.change for field in fields],
        fn=None,
        inputs=fields,
        outputs=memory,
        api_visibility="private",
        js=f"(...values) => Object.fromEntries({names}.map((name, i) => [name, values[i]]))",
    )

    nothing = [gr.skip()] * (len(fields) + 2)

    def _of_link(run: str) -> list:
        try:
            return [*_made_by(store.get(run), names_of_pairs), gr.skip(), None]
        except UserError:  # the view says so
            return nothing

    def restore(kept: Any, visitor: gr.Request) -> list:
        kept, query = kept if isinstance(kept, dict) else {}, dict(visitor.query_params)
        if "run" in query:
            return _of_link(query["run"])
        if set(query) & set(FIELDS):
            settings, faults = read_settings(query, first, "link", names_of_pairs)
        elif kept:
            settings, faults = read_settings(kept, first, "browser", names_of_pairs)[0], []
        else:
            return nothing  # nothing to restore: leave alone what is being typed already
        delta = told("failed", message=" ".join(faults)) if faults else gr.skip()
        example = gr.skip() if settings.prompt == first.prompt else None
        return [*asdict(settings).values(), delta, example]

    page.load(
        restore,
        inputs=memory,
        outputs=[*fields, view, form.example],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )
