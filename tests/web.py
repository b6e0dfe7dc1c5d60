"""httpx's functions and Gradio's client, with a busy machine's patience: httpx itself gives up after 5 s of silence."""

from functools import partial

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
