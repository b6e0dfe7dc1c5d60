"""The Race tab: the form, Run and Stop, and the view with the player, the export links and the plots."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from decoding.backends.base import Backend
from decoding.backends.recorded import RecordedBackend
from decoding.backends.stream import EventStream
from decoding.errors import UserError
from decoding.records.events import Event
from decoding.records.request import SETTINGS, CompareRequest

from .choices import Example, default_lanes, find_examples, lane_choices, lane_lines, pair_named, read_lanes, set_here
from .estimate import measured_in, models_sentence, time_sentence
from .forms import IN_BROWSER, QUIET, static_html, wire_job, wire_memory
from .race_form import Form
from .server_functions import answers
from .session import Visits, delta_of, race_stream
from .settings import FormValues, form_of, form_of_run, read_form, request_of
from .store import RunStore

FORMATS = ("dtype", "draft_dtype")
LATEST = {"trigger_mode": "always_last", **QUIET}
FACTS_FROM = ("lanes", "max_new_tokens", "repeats", "pair", "target", *FORMATS)
TEMPLATE = """<div class="speculoscope">
<div class="sp-status" role="status" aria-live="polite" hidden></div>
<div class="sp-player"></div>
<div class="sp-take" role="group" aria-label="Save or share"></div>
<section class="sp-plots" aria-label="Plots of this run"></section>
</div>"""


class RaceTab:
    """The tab: its components, added to ``page``, whose context is open, and their events."""

    def __init__(
        self, page: gr.Blocks, backend: Backend, recorded: RecordedBackend, store: RunStore, visits: Visits
    ) -> None:
        pairs = backend.pairs()
        self.page, self.backend, self.recorded, self.store = page, backend, recorded, store
        self.examples = find_examples(recorded)
        self.pairs = [pair.name for pair in pairs if pair.loadable]
        first = self.examples[0]  # one with a recording, if there is any
        self.first = form_of(CompareRequest(first.prompt, default_lanes(pairs)))
        shown = self.made_by(first.recording) if first.recording else self.first  # what made the run on screen
        self.form = Form(shown, self.examples, pairs, self.facts(*(shown[name] for name in FACTS_FROM)))
        # Player, export links and plots in one component; its value is the latest delta as JSON text.
        delta = self.example_delta(first) if first.recording else ""
        script, functions = "race(element, props, watch, server, trigger)", answers(store, visits)
        self.view = static_html(TEMPLATE, script, delta, elem_id="race", server_functions=functions)
        self.fields = list(self.form.fields.values())
        self._wire_run(visits)
        self._wire_examples()
        self._wire_opened()
        self._wire_set_here()
        self._wire_facts()
        self._wire_lanes()
        self._wire_memory()

    def example_delta(self, example: Example) -> Any:
        """The recorded run of ``example`` with its points to notice; nothing if it was not recorded."""
        if not example.recording:
            return gr.skip()
        return delta_of("finished", payload=self.store.payload("payload", example.recording))

    def made_by(self, run: str) -> FormValues:
        """The form that repeats ``run``. Raises UserError."""
        return form_of_run(self.store.get(run), self.pairs)

    def _wire_run(self, visits: Visits) -> None:
        def start(*values: Any) -> EventStream[Event]:
            request = self.form.photographs.filled_in(request_of(dict(zip(SETTINGS, values))))
            return race_stream(self.backend, self.store, request)

        buttons, enter = (self.form.run, self.form.stop), self.form.fields["prompt"].submit
        wire_job("race", start, visits, self.fields, self.view, buttons, enter)

    def _wire_examples(self) -> None:
        prompt, list_ = self.form.fields["prompt"], self.form.example
        unchanged: FormValues = dict.fromkeys(SETTINGS, gr.skip())
        nothing = [gr.skip()] * (len(self.fields) + 2)

        def open_example(index: int) -> list:
            example = self.examples[index]
            named = {"lanes": example.lanes} if example.lanes else {}
            values = self.made_by(example.recording) if example.recording else {**unchanged, **named}
            return [*{**values, "prompt": example.prompt}.values(), self.example_delta(example), index]

        def choose(index: int | None, shown: int, text: str) -> list:
            # Gradio also reports input when the list merely loses focus; text typed since must not be lost then.
            return nothing if index in (None, shown) else open_example(index)

        def choose_again(index: int | None, shown: int, text: str) -> list:
            # It reports a selection only when an option is clicked, including the current one, which restores its text.
            return open_example(shown) if index == shown and text != self.examples[shown].prompt else nothing

        shown = gr.State(0)  # the example chosen last: the form opens with the first one
        for event, act in ((list_.input, choose), (list_.select, choose_again)):
            event(act, [list_, shown, prompt], [*self.fields, self.view, shown], **QUIET)
        # The visitor's own text is not an example. Gradio reports pasted text as a change only, not as input.
        prompts = json.dumps({example.title: example.prompt for example in self.examples})
        js = f"(text, title) => (({prompts})[title] === text ? title : null)"
        prompt.change(js=js, inputs=[prompt, list_], outputs=list_, **IN_BROWSER)

    def _wire_set_here(self) -> None:
        """Every visit, and every run as it starts, shows what the machine's costs have chosen by then for its pair."""
        fields = self.form.fields
        named, formats = [fields[name] for name in ("pair", "target")], [fields[name] for name in FORMATS]

        def sentence(pair: str, target: str, *formats: str) -> Any:
            chosen = "" if target or not measured_in(formats) else set_here(self.backend.pairs(), pair)
            return gr.Markdown(chosen, visible=bool(chosen))

        def choices(pair: str, target: str) -> Any:
            pairs = self.backend.pairs()
            chosen = None if target else pair_named(pair, pairs)
            ordered = [chosen, *(one for one in pairs if one is not chosen)] if chosen else pairs
            return gr.Dropdown(choices=lane_choices(ordered, self.examples))

        chosen_again = [self.page.load, *(field.change for field in named)]
        gr.on(chosen_again, choices, named, fields["lanes"], **LATEST)
        events = [*chosen_again, *(field.change for field in formats), self.form.run.click]
        gr.on(events, sentence, [*named, *formats], self.form.set_here, **LATEST)

    def _wire_facts(self) -> None:
        """The models and the seconds of the run that the form asks for."""
        fields = [self.form.lanes, *(self.form.fields[name] for name in FACTS_FROM[1:])]
        events = [self.page.load, *(field.change for field in fields)]
        gr.on(events, self.facts, fields, self.form.facts, **LATEST)

    def facts(self, lanes: Any, max_new_tokens: Any, repeats: Any, pair: str, target: str, *formats: str) -> str:
        """The sentences for the values of FACTS_FROM; "" where nothing is known."""
        chosen = None if target else pair_named(pair, self.backend.pairs())
        if chosen is None:
            return ""
        seconds = time_sentence(chosen, lanes, max_new_tokens, repeats, formats)
        return f"{models_sentence(chosen, self.recorded, lanes)} {seconds}"

    def _wire_lanes(self) -> None:
        """What is typed becomes a lane of the list, or is refused at once."""
        lanes, fault = self.form.fields["lanes"], self.form.lane_fault

        def read(typed: list[str], said: dict[str, Any] | None) -> tuple[Any, Any]:
            if said and said["left"] == typed:  # the change that the refusal itself made
                return gr.skip(), gr.skip()
            named, sentence = read_lanes(typed, lane_choices(self.backend.pairs(), self.examples))
            return (named if named != typed else gr.skip()), {"text": sentence, "left": sentence and named}

        show = f"() => {{ window.SpeculoscopePage.lines({json.dumps(lane_lines(lanes.choices))}); }}"
        lanes.focus(js=show, **IN_BROWSER)
        say = "(fault) => { window.SpeculoscopePage.laneFault(fault?.text); }"
        # Gradio reports what was typed as a change only, not as input.
        was_read = self.form.lanes.change(read, [self.form.lanes, fault], [lanes, fault], **QUIET)
        was_read.success(inputs=fault, js=say, **IN_BROWSER)

    def _wire_opened(self) -> None:
        """Opening a run file sets the form to its settings."""

        def fill(event: gr.EventData) -> list:
            try:
                return [*self.made_by(event.run).values(), None]
            except (UserError, AttributeError):  # the run is on screen; only its form is missing
                return [gr.skip()] * (len(self.fields) + 1)

        self.view.select(fill, None, [*self.fields, self.form.example], **QUIET)

    def _wire_memory(self) -> None:
        """The browser stores the settings; a link takes precedence. Both are checked as untrusted input.

        A link to a pair without a prompt opens that pair's first example.
        """
        nothing = [gr.skip()] * (len(self.fields) + 2)

        def restore(kept: Any, visitor: gr.Request) -> list:
            kept, query = kept if isinstance(kept, dict) else {}, dict(visitor.query_params)
            if "run" in query:
                try:
                    return [*self.made_by(query["run"]).values(), gr.skip(), None]
                except UserError:  # the view says so
                    return nothing
            pair = query.get("pair")
            of_pair = next((one for one in self.examples if one.recording and one.pair == pair), None)
            example = None if "prompt" in query else of_pair
            if set(query) & set(SETTINGS):
                base = self.first if example is None else {**self.first, "prompt": example.prompt}
                values, faults = read_form(query, base, "link", self.pairs)
            elif kept:
                values, faults = read_form(kept, self.first, "browser", self.pairs)[0], []
            else:
                return nothing  # keep what the visitor is typing
            delta = gr.skip()
            if faults:
                delta = delta_of("failed", message=" ".join(faults))
            elif example:
                delta = self.example_delta(example)
            title = gr.skip() if values["prompt"] == self.first["prompt"] else example and example.title
            return [*values.values(), delta, title]

        outputs = [*self.fields, self.view, self.form.example]
        wire_memory(self.page, self.form.fields, self.view, restore, outputs)
