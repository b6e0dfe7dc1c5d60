"""The page in front of a served backend: a run over the wire, the server killed in the midst of it, and back again."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from playwright.sync_api import expect

from decoding.backends.remote import RemoteBackend
from tests.page_server import page_at, write_recordings
from tests.test_page_app import free_port

from .conftest import WAIT

TOKEN = "s3cret"
SERVER = textwrap.dedent("""
    import sys, uvicorn
    from decoding.backends.local import LocalBackend
    from decoding.backends.server import Limits, create_app
    from tests.fakes import ScriptedRunner
    app = create_app(LocalBackend(ScriptedRunner), sys.argv[2], Limits())
    uvicorn.run(app, port=int(sys.argv[1]), access_log=False)
""")
LINK = "?lanes=autoregressive,static:5&repeats=1&max_new_tokens="


class Server:
    """A served backend that can be killed and started again on its port."""

    def __init__(self) -> None:
        self.port, self.process = free_port(), None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVER, str(self.port), TOKEN]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "Uvicorn running" in line:
                return
        raise AssertionError("The server did not start.")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.kill()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def run(page, prompt: str) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#run").click()


def finished(page) -> None:
    expect(page.locator(".sd-badge")).to_contain_text("live", timeout=WAIT)
    expect(page.locator(".sd-sentence")).to_contain_text("Here:", timeout=WAIT)
    expect(page.locator("#run")).to_be_visible(timeout=WAIT)


def test_a_wrong_token_is_a_sentence(visit, server, tmp_path):
    with page_at(RemoteBackend(address(server), "guess"), write_recordings(tmp_path)) as url:
        page = visit(url)
        expect(page.locator("#race .sd-strip").first).to_be_visible(timeout=WAIT)
        run(page, "let me in")
        expect(page.locator(".sp-fault")).to_contain_text("requires a token", timeout=WAIT)
        expect(page.locator(".sd-badge")).to_contain_text("recorded")


@pytest.mark.timeout(300)  # it starts a server twice
def test_a_killed_server_is_a_sentence_what_had_arrived_stays_and_a_new_one_serves_again(visit, server, tmp_path):
    backend = RemoteBackend(address(server), TOKEN, patience_s=1.0)
    with page_at(backend, write_recordings(tmp_path)) as url:
        page = visit(f"{url}{LINK}300")
        expect(page.locator("#max-new-tokens input")).to_have_value("300", timeout=WAIT)
        run(page, "#slow")
        expect(page.locator(".sd-badge")).to_contain_text("live", timeout=WAIT)
        expect(page.locator(".sd-text:visible .sd-tk").nth(10)).to_be_visible(timeout=WAIT)
        server.kill()
        expect(page.locator(".sp-fault")).to_contain_text("was lost and did not come back", timeout=WAIT)
        expect(page.locator("#run")).to_be_visible(timeout=WAIT)
        assert page.locator(".sd-text:visible .sd-tk").count() > 10
        run(page, "nobody is there")
        expect(page.locator(".sp-fault")).to_contain_text("Nothing answers at 127.0.0.1", timeout=WAIT)
        server.start()
        page.locator("#max-new-tokens input").fill("20")
        page.locator("#max-new-tokens input").blur()
        run(page, "back again")
        finished(page)
        assert page.locator(".sp-fault").count() == 0
        assert page.faults == []
