"""The Race tab's picture: a gallery of scenes, a field in which emoji are typed, and a button for pairs that read
photographs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr
from PIL import Image

from decoding.errors import UserError
from decoding.pictures.photo import is_photo, named, packed, photo_of
from decoding.pictures.scenes import draw, scene_of
from decoding.records.pairs import PairDescription
from decoding.records.request import SETTINGS, CompareRequest

from .choices import pair_named
from .forms import IN_BROWSER, QUIET
from .store import Newest

SCENES = (
    ("🐱 🐶 #7", "What is in the picture?"),
    ("🍎 🍎 🍌 #2", "How many apples are in the picture?"),
    ("🚗 🌲 #5", "What do you see in the picture?"),
    ("red-star blue-circle #3", "What color is the star?"),
    ("🐸 🦋 🌻 #1", "Describe the picture."),
    ("🐘 🎈 #4", "What is to the left of the balloon?"),
    ("green-7 🐧 #6", "How many things do you see?"),
    ("🍕 ☕ 🍩 🍓 #9", "Tell me about the picture."),
)
"""Scenes of the gallery, each with a question that goes with it."""
QUESTIONS = tuple(dict.fromkeys([question for _, question in SCENES]))
HELP = "Emoji in any order, red-star or blue-7 for signs, #3 for another arrangement"
KEPT = 16


class Photographs:
    """The photographs uploaded last, by the names that stand for them in the form."""

    def __init__(self) -> None:
        self._kept: Newest[str] = Newest(KEPT)

    def add(self, picture: str) -> str:
        """Checks and keeps a photograph, a data URL; returns its name. Raises UserError."""
        photo = photo_of(picture)
        name = named(photo)
        self._kept.keep(name, packed(photo))
        return name

    def filled_in(self, request: CompareRequest) -> CompareRequest:
        """``request`` with the photograph that it names, if it is kept here."""
        return replace(request, picture=self._kept.get(request.picture) or request.picture)

    def drawn(self, picture: str) -> Image.Image | None:
        """A scene or a kept photograph; None for no picture. Raises UserError."""
        if not picture.strip():
            return None
        return photo_of(self._kept.get(picture) or picture) if is_photo(picture) else draw(scene_of(picture), 2)


def reads(pair: str, pairs: list[PairDescription]) -> str:
    """What the target of ``pair`` ("": the first one) reads: "scenes", "photographs", or "" for text alone."""
    found = pair_named(pair, pairs)
    return "" if found is None else "scenes" if found.pictures else "photographs" if found.photographs else ""


class PictureForm:
    """The setting's own field, and the components around it."""

    def __init__(self, first: str, pair: str, pairs: list) -> None:
        """``first``: what the field holds; ``pair``: the chosen one of ``pairs``."""
        self.pairs, self.photographs = pairs, Photographs()
        setting, what = SETTINGS["picture"], reads(pair, pairs)
        scenes = what == "scenes"
        with gr.Accordion(
            "Picture", open=bool(first), visible=bool(what), elem_id="picture-box", elem_classes="sp-settings"
        ) as self.box:
            with gr.Row(elem_classes="sp-ask"):
                self.preview = gr.Image(
                    None if is_photo(first) else self.photographs.drawn(first),
                    label="What the target sees",
                    show_label=False,  # it would lie over the picture
                    interactive=False,
                    height=130,
                    width=150,
                    buttons=[],
                    scale=0,
                    min_width=150,
                    elem_id="picture-preview",
                )
                with gr.Column(scale=4, min_width=260):
                    self.field = gr.Textbox(first, label=f"{setting.label} ({HELP})", max_lines=1, elem_id="picture")
                    with gr.Row(elem_classes="sp-ask"):
                        self.questions = gr.Dropdown(
                            list(QUESTIONS),
                            value=None,
                            label="Questions",
                            scale=3,
                            filterable=False,
                            elem_id="questions",
                        )
                        self.other = gr.Button(
                            "Another arrangement", scale=1, min_width=150, visible=scenes, elem_id="arrange"
                        )
                        self.upload = gr.Button(
                            "Photograph…", scale=1, min_width=150, visible=what == "photographs", elem_id="upload"
                        )
                    self.fault = gr.Textbox(
                        visible=False,
                        show_label=False,
                        container=False,
                        interactive=False,
                        max_lines=3,
                        elem_id="picture-fault",
                    )
            self.gallery = gr.Gallery(
                [(draw(scene_of(scene), 2), question) for scene, question in SCENES],
                label="Scenes",
                show_label=False,
                columns=len(SCENES),
                object_fit="contain",
                allow_preview=False,
                visible=scenes,
                buttons=[],
                elem_id="scenes",
            )
        self.given = gr.Textbox(visible=False)

    def wire(self, prompt: gr.Textbox, pair: Any) -> None:
        """Connects the parts with each other, with the prompt and with the chosen pair."""

        def show(picture: str) -> tuple[Any, Any, Any]:
            opened = gr.Accordion(open=True) if picture.strip() else gr.skip()  # a run reads also what is folded away
            try:
                return self.photographs.drawn(picture), gr.Textbox(visible=False), opened
            except UserError as error:
                return None, gr.Textbox(str(error), visible=True), opened

        def choose(event: gr.SelectData) -> tuple[str, str, None]:
            scene, question = SCENES[event.index]
            return scene, question, None

        def arrange(picture: str) -> str:
            things, _, seed = picture.partition("#")
            number = int(seed) + 1 if seed.strip().isdecimal() and len(seed) < 8 else 1
            return f"{things.strip()} #{number}" if things.strip() else picture

        def take(picture: str) -> tuple[Any, Any]:
            try:
                return self.photographs.add(picture) if picture else gr.skip(), gr.Textbox(visible=False)
            except UserError as error:
                return gr.skip(), gr.Textbox(str(error), visible=True)

        def offer(name: str) -> list[Any]:
            what = reads(name, self.pairs)
            scenes, photos = what == "scenes", what == "photographs"
            return [gr.update(visible=shown) for shown in (bool(what), scenes, scenes, photos)]

        self.field.change(show, self.field, [self.preview, self.fault, self.box], **QUIET)
        self.gallery.select(choose, None, [self.field, prompt, self.questions], **QUIET)
        self.other.click(arrange, self.field, self.field, **QUIET)
        choose_file = self.upload.click(
            js="() => window.SpeculoscopePage.photograph()", outputs=self.given, **IN_BROWSER
        )
        choose_file.then(take, self.given, [self.field, self.fault], **QUIET)
        self.questions.input(js="(chosen) => chosen", inputs=self.questions, outputs=prompt, **IN_BROWSER)
        pair.change(offer, pair, [self.box, self.gallery, self.other, self.upload], **QUIET)
