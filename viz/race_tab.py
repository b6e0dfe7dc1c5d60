"""The Race tab: the form, Run and Stop, and the view with the player, the export links and the plots."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import gradio as gr

from decoding.backends.base import Backend
from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.request import SETTINGS, CompareRequest
from decoding.records.trace import Run

from .buttons import idle, running, stopping
from .choices import Example, default_lanes, find_examples, lane_choices, set_here
from .memory import wire_memory
from .player.payload import run_payload
from .race_form import Form, build_form
from .server_functions import answers
from .session import Visits, address_of, delta_of, race_stream
from .settings import FormValues, form_of, read_form, request_of
from .store import RunStore

TASK = "race"
TEMPLATE = """<div class="speculoscope">
<div class="sp-status" role="status" aria-live="polite" hidden></div>
<div class="sp-player"></div>
<div class="sp-take" role="group" aria-label="Save or share"></div>
<section class="sp-plots" aria-label="Plots of this run"></section>
</div>"""


def race_view(value: str, functions: list) -> gr.HTML:
    """Player, export links and plots in one component; its value is the latest delta as JSON text.

    The template is static: it never contains a user's or a model's text. (Not a subclass of gr.HTML: Gradio writes a
    .pyi file for the module of every subclass.)
    """
    return gr.HTML(
        value,
        elem_id="race",
        html_template=TEMPLATE,
        js_on_load="window.SpeculoscopePage.race(element, props, watch, server, trigger);",
        apply_default_css=False,
        server_functions=functions,
    )


def build_race_tab(
    page: gr.Blocks,
    backend: Backend,
    recorded: RecordedBackend,
    store: RunStore,
    visits: Visits,
    memory: gr.BrowserState,
) -> None:
    """Adds the tab's components to ``page``, whose context is open, and wires them; ``memory``: of its form."""
    examples = find_examples(recorded)
    pairs = backend.pairs()
    first = form_of(CompareRequest(examples[0].prompt if examples else "", default_lanes(pairs)))
    names = [pair.name for pair in pairs if pair.loadable]
    form = build_form(_shown_first(first, examples, store, names), examples, pairs)
    view = race_view(_first_value(store, examples), answers(store, visits))
    fields = list(form.fields.values())
    _wire_run(form, fields, view, visits, backend, store)
    _wire_examples(form, fields, view, store, examples, names)
    _wire_opened(form, fields, view, store, names)
    _wire_set_here(page, backend, form, examples)
    _wire_memory(page, memory, form, fields, view, first, examples, names, store)


# -- deltas for the view --------------------------------------------------------------------------------------


def _example_delta(store: RunStore, example: Example) -> Any:
    """The recorded run of ``example`` with its points to notice; nothing if it was not recorded."""
    if not example.recording:
        return gr.skip()
    run = store.get(example.recording)
    return delta_of("finished", payload=run_payload(run, origin="recorded", shows=example.shows, point=example.point))


def _first_value(store: RunStore, examples: list[Example]) -> str:
    """The delta of the run that plays first; "" if none is shipped."""
    first = next((example for example in examples if example.recording), None)
    return _example_delta(store, first) if first else ""


def _first_of_pair(examples: list[Example], pair: str | None) -> Example | None:
    """The first recorded example of ``pair``."""
    return next((one for one in examples if one.recording and one.pair == pair), None)


def _made_by(run: Run, names_of_pairs: list[str]) -> list:
    """The form's values that repeat ``run``; fields that cannot show a setting keep their defaults."""
    form, _ = read_form(form_of(run.asked), form_of(CompareRequest("")), "run", names_of_pairs)
    return list(form.values())


def _shown_first(first: FormValues, examples: list[Example], store: RunStore, names_of_pairs: list[str]) -> FormValues:
    """The form's values when the page opens: those that made the run on screen, else ``first``."""
    if not examples or not examples[0].recording:
        return first
    return dict(zip(SETTINGS, _made_by(store.get(examples[0].recording), names_of_pairs)))


# -- wires -----------------------------------------------------------------------------------------------------


def _wire_run(form: Form, fields: list, view: gr.HTML, visits: Visits, backend: Backend, store: RunStore) -> None:
    async def race(visitor: gr.Request, *values: Any) -> AsyncIterator[tuple]:
        yield gr.skip(), *running()
        try:
            request = request_of(dict(zip(SETTINGS, values)))
        except UserError as error:
            yield delta_of("failed", message=str(error)), gr.skip(), gr.skip()
        else:
            job = partial(race_stream, backend, store, request)
            async for delta in visits.deltas(job, visitor.session_hash or "", TASK, address_of(visitor)):
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


def _wire_examples(
    form: Form, fields: list, view: gr.HTML, store: RunStore, examples: list[Example], names_of_pairs: list[str]
) -> None:
    prompt, names = form.fields["prompt"], list(SETTINGS)
    nothing = [gr.skip()] * (len(fields) + 2)

    def open_example(index: int) -> list:
        example = examples[index]
        if example.recording:
            values = _made_by(store.get(example.recording), names_of_pairs)
        else:
            values = [gr.skip()] * len(fields)
            values[names.index("lanes")] = example.lanes or gr.skip()
        values[names.index("prompt")] = example.prompt
        return [*values, _example_delta(store, example), index]

    def choose(index: int | None, shown: int, text: str) -> list:
        # Gradio also reports input when the list merely loses focus; text typed since must not be lost then.
        is_one = isinstance(index, int) and 0 <= index < len(examples)
        return open_example(index) if is_one and index != shown else nothing

    def choose_again(index: int | None, shown: int, text: str) -> list:
        # It reports a selection only when an option is clicked, including the current one, which restores its text.
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
    # The visitor's own text is not an example. Gradio reports pasted text as a change only, not as input.
    prompts = json.dumps({example.title: example.prompt for example in examples})
    prompt.change(
        fn=None,
        js=f"(text, title) => (({prompts})[title] === text ? title : null)",
        inputs=[prompt, form.example],
        outputs=form.example,
        api_visibility="private",
    )


def _wire_set_here(page: gr.Blocks, backend: Backend, form: Form, examples: list[Example]) -> None:
    """Every visit shows what the machine's costs have chosen by then."""

    def shown() -> tuple[Any, Any]:
        pairs = backend.pairs()
        chosen = set_here(pairs)
        return gr.Markdown(chosen, visible=bool(chosen)), gr.Dropdown(choices=lane_choices(pairs, examples))

    page.load(
        shown,
        None,
        [form.set_here, form.fields["lanes"]],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )


def _wire_opened(form: Form, fields: list, view: gr.HTML, store: RunStore, names_of_pairs: list[str]) -> None:
    """Opening a run file sets the form to its settings."""

    def fill(event: gr.EventData) -> list:
        try:
            return [*_made_by(store.get(event.run), names_of_pairs), None]
        except (UserError, AttributeError):  # the run is on screen; only its form is missing
            return [gr.skip()] * (len(fields) + 1)

    view.select(
        fill,
        None,
        [*fields, form.example],
        show_progress="hidden",
        concurrency_limit=None,
        api_visibility="private",
    )


def _wire_memory(
    page: gr.Blocks,
    memory: gr.BrowserState,
    form: Form,
    fields: list,
    view: gr.HTML,
    first: FormValues,
    examples: list[Example],
    names_of_pairs: list[str],
    store: RunStore,
) -> None:
    """The browser stores the settings; a link takes precedence. Both are checked as untrusted input.

    A link to a pair without a prompt opens that pair's first example.
    """
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
        example = None if "prompt" in query else _first_of_pair(examples, query.get("pair"))
        if set(query) & set(SETTINGS):
            base = first if example is None else {**first, "prompt": example.prompt}
            values, faults = read_form(query, base, "link", names_of_pairs)
        elif kept:
            values, faults = read_form(kept, first, "browser", names_of_pairs)[0], []
        else:
            return nothing  # keep what the visitor is typing
        delta = gr.skip()
        if faults:
            delta = delta_of("failed", message=" ".join(faults))
        elif example and example is not examples[0]:  # the first one is on screen already
            delta = _example_delta(store, example)
        title = gr.skip() if values["prompt"] == first["prompt"] else example and example.title
        return [*values.values(), delta, title]

    wire_memory(page, memory, form.fields, restore, [*fields, view, form.example])
