"""How tests reach a page: httpx's functions and Gradio's client, with a busy machine's patience (httpx itself gives up
after 5 s of silence), and Chromium.
"""

import os
import shutil
from functools import partial
from typing import Any

import httpx
from gradio_client import Client

PATIENCE_S = 60.0

delete = partial(httpx.delete, timeout=PATIENCE_S)
get = partial(httpx.get, timeout=PATIENCE_S)
post = partial(httpx.post, timeout=PATIENCE_S)
put = partial(httpx.put, timeout=PATIENCE_S)
request = partial(httpx.request, timeout=PATIENCE_S)
stream = partial(httpx.stream, timeout=PATIENCE_S)


def connect(url: str) -> Client:
    return Client(url, verbose=False, httpx_kwargs={"timeout": PATIENCE_S})


def open_chromium(playwright: Any) -> Any:
    """The browser at SPECULOSCOPE_CHROMIUM, or else Debian's headless shell (without the parts of a desktop browser, it
    opens a page in a third less processor time), Debian's chromium, or playwright's own.
    """
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    path = os.environ.get("SPECULOSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
