"""Start the dashboard: python app.py [--backend URL | --recorded] [--mcp] [--host H] [--port P]."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
try:
    import spaces  # noqa: F401  (on ZeroGPU it must come before torch)
except ImportError:
    pass

from decoding.backends import choose_backend
from decoding.backends.base import check_address
from decoding.errors import UserError
from decoding.files import ProcessFolder, ended_by_sigterm


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port: choose a number from 1 to 65535")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speculoscope: watch speculative decoding as it happens.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--backend", metavar="URL", help="where to run models: a served backend, or space:OWNER/NAME")
    source.add_argument("--recorded", action="store_true", help="show recorded runs only; nothing runs live")
    parser.add_argument("--mcp", action="store_true", help="offer tools to language models, over MCP")
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME"), help="address to listen on")
    parser.add_argument("--port", type=_port, help="port to listen on; default: the first free port from 7860 on")
    options = parser.parse_args()
    try:
        _port(os.environ.get("GRADIO_SERVER_PORT", "7860"))
    except argparse.ArgumentTypeError as error:
        parser.error(f"GRADIO_SERVER_PORT: {error}")
    try:
        check_address((options.host or "127.0.0.1").strip("[]"), options.port or 0)
        pictures = ProcessFolder("speculoscope-pictures-")  # which Gradio writes; its own folder would stay
        os.environ.setdefault("GRADIO_TEMP_DIR", pictures.name)
        from viz.page import build_page, serve  # with Gradio, which cannot be imported where that is no number

        backend = choose_backend(url=options.backend, recorded=options.recorded)
        page = build_page(backend, mcp=options.mcp)
    except (UserError, OSError) as error:  # OSError: no folder for temporary files can be written
        parser.error(str(error))
    with ended_by_sigterm():  # so that files are cleared away as on Ctrl-C
        try:
            where = {"server_name": options.host, "server_port": options.port}
            _, url, _ = serve(page, **where, prevent_thread_lock=True, quiet=True)
            print(f"Speculoscope is at {url} (Ctrl-C ends it).", flush=True)
            if options.mcp:
                print(f"Its tools for language models are at {url}gradio_api/mcp/ (streamable HTTP).", flush=True)
            backend.prepare()
            page.block_thread()
        except OSError:
            first = options.port or os.environ.get("GRADIO_SERVER_PORT", "7860")
            parser.error(f"Every port from {first} on that was tried is taken: choose another --port.")
        finally:
            backend.close()


if __name__ == "__main__":
    main()
