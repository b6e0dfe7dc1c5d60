"""This project's parts of the page's document: included once."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from viz.assets.document import Document

PAGE = "<html><head><title>x</title></head><body><gradio-app></gradio-app></body></html>"
WRITTEN = "<html><head><title>x</title><i></i></head><body><b></b><gradio-app></gradio-app></body></html>"
OTHER = "<html><head></head><body>Sign in</body></html>"


@pytest.fixture
def client():
    async def pieces():
        for piece in (PAGE[:30], PAGE[30:]):
            yield piece

    routes = [
        Route("/", lambda request: HTMLResponse(PAGE)),
        Route("/streamed", lambda request: StreamingResponse(pieces(), media_type="text/html")),
        Route("/other", lambda request: HTMLResponse(OTHER)),
        Route("/text", lambda request: PlainTextResponse(PAGE)),
    ]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(Document, head="<i></i>", body="<b></b>")]))


@pytest.mark.parametrize("path", ["/", "/streamed"])
def test_our_parts_are_in_the_page_once(client, path):
    response = client.get(path)
    assert response.text == WRITTEN
    assert response.headers["content-length"] == str(len(WRITTEN))


def test_what_is_no_page_stays_as_it_is(client):
    assert client.get("/other").text == OTHER
    text = client.get("/text")
    assert text.text == PAGE
    assert client.get("/nowhere").status_code == 404
