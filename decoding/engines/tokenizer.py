"""The pair's tokenizer: text to ids and back, and the text of single tokens."""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ..errors import UserError, readable
from ..records.trace import TokenText

MOST_WRITTEN = 100_000  # characters of a chat template around a message
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a token of SentencePiece


class Tokenizer:
    """Wraps a transformers tokenizer; ``eos_ids`` include those of the target's generation config."""

    def __init__(self, hf_tokenizer: Any, eos_ids: frozenset[int] = frozenset()) -> None:
        self._hf = hf_tokenizer
        own = hf_tokenizer.eos_token_id
        self.eos_ids = eos_ids or frozenset(() if own is None else (own,))
        self._special = frozenset(getattr(hf_tokenizer, "all_special_ids", ()))
        self.token_text = lru_cache(maxsize=65536)(self._token_text)

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self._hf, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, with the special tokens (BOS) that this tokenizer adds.

        A chat template writes its own BOS: text that starts with it gets no second one.
        """
        return list(self._hf.encode(text, **self.bos_for(text)))

    def encode_typed(self, text: str) -> list[int]:
        """As :meth:`encode`, of what a visitor typed: the name of a special token in it is letters, no such token."""
        return list(self._hf.encode(text, split_special_tokens=True))

    def encode_chat(self, text: str, system: str = "") -> list[int]:
        """Token ids of :meth:`chat`, where the special tokens are the template's own and none is typed."""
        typed = f"{text}\n{system}"
        if not any(name in typed for name in self._special_names()):
            return self.encode(self.chat(text, system))
        return self.encode_message(text, system)[0]

    def encode_message(self, text: str, system: str = "") -> tuple[list[int], int]:
        """As :meth:`encode_chat`, but no token crosses a border of what is typed; also where ``text`` begins."""
        mark, system_mark = (f"[{secrets.token_hex(16)}]" for _ in range(2))
        contents = {mark: text, system_mark: system}
        whole = self.chat(mark, system_mark if system else "")
        first, *parts = re.split(f"({'|'.join(map(re.escape, contents))})", whole)
        ids, at = self.encode(first), 0
        for part in parts:
            at = len(ids) if part == mark else at
            ids += self.encode_part(contents.get(part, part), part in contents)
        return ids, at

    def encode_part(self, text: str, typed: bool = False) -> list[int]:
        """Token ids of a part of a text, without added tokens; ``typed``: by a visitor, so that it names no special
        token.
        """
        return list(self._hf.encode(text, add_special_tokens=False, split_special_tokens=typed))

    def picture_message(self, processor: Any) -> tuple[str, str]:
        """What the template of a ``processor`` writes before and after a message that begins with a picture."""
        mark = f"[{secrets.token_hex(16)}]"
        content = [{"type": "image"}, {"type": "text", "text": mark}]
        try:
            whole = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
            before, after = whole.split(mark)
        except Exception as error:  # a template is a program from the model's folder: it can fail in any way
            raise UserError("The target's chat template takes no pictures: leave the picture out.") from error
        return before, after

    def bos_for(self, text: str) -> dict[str, bool]:
        """Options under which tokenizer or processor begin ``text`` with at most one BOS."""
        bos = self._hf.bos_token
        return {"add_special_tokens": not (bos and text.startswith(bos))}

    def _special_names(self) -> list[str]:
        """How a text would name the tokens that the tokenizer does not read as letters."""
        return [token.content for token in getattr(self._hf, "added_tokens_decoder", {}).values() if token.special]

    def vocabulary(self) -> dict[int, str]:
        """Id -> token of the ordinary vocabulary, without special and added tokens."""
        added = getattr(self._hf, "added_tokens_decoder", {})
        return {id: token for token, id in self._hf.get_vocab().items() if id not in added}

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids``; special tokens are shown, spaces are unchanged."""
        return self._hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def chat(self, text: str, system: str = "") -> str:
        """``text`` as a user's message under the model's chat template; unchanged without one.

        ``system``: the message before it; "" leaves the template's own. Raises UserError if it takes none.
        """
        if not self.has_chat_template:
            return text
        messages = [{"role": "user", "content": text}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        try:
            whole = self._hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:  # some templates refuse the role
            raise UserError(f"The target's chat template does not accept these messages ({error}).") from error
        except Exception as error:  # a template is a program from the model's folder: it can fail in any way
            raise UserError(
                f"The target's chat template is broken ({type(error).__name__}): let it continue the text instead."
            ) from error
        if len(whole) > MOST_WRITTEN + 2 * (len(text) + len(system)):
            raise UserError(
                f"The target's chat template is broken (it writes {len(whole):,} characters for one message): let it "
                "continue the text instead."
            )
        return whole

    def _token_text(self, token: int) -> TokenText:
        """The text of ``token`` inside a text, with its bytes if it is not complete UTF-8."""
        raw = token_bytes(self._hf, token)
        if raw is None:
            return TokenText(self.decode([token])[:400], special=token in self._special)
        try:
            return TokenText(raw.decode("utf-8")[:400])
        except UnicodeDecodeError:
            return TokenText(raw.decode("utf-8", errors="replace")[:400], raw.hex()[:400])


def token_bytes(hf_tokenizer: Any, token: int) -> bytes | None:
    """The bytes of ``token`` inside a text; None if the tokenizer does not define them (special tokens).

    Supports byte-level BPE (GPT-2's alphabet) and SentencePiece (``▁`` for a space, ``<0xNN>`` for a byte).
    """
    piece = hf_tokenizer.convert_ids_to_tokens(token)
    if piece is None or token in getattr(hf_tokenizer, "added_tokens_decoder", {}):
        return None
    if isinstance(piece, bytes):
        return piece
    if _is_byte_level(hf_tokenizer):
        alphabet = _byte_alphabet()
        return bytes(alphabet[char] for char in piece) if all(char in alphabet for char in piece) else None
    if _BYTE.fullmatch(piece):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode("utf-8")


def _is_byte_level(hf_tokenizer: Any) -> bool:
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in repr(backend.decoder)


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte (Radford et al. 2019), reversed."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {char: byte for byte, char in bytes_to_unicode().items()}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in ``folder`` with the end-of-text ids of its generation config. Raises UserError."""
    from transformers import AutoTokenizer

    with readable(f"{folder.name} has no tokenizer that can be loaded", "choose another model"):
        hf_tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        hf_tokenizer.encode("a")  # some broken settings fail only here
    return Tokenizer(hf_tokenizer, _eos_ids(folder))


def _eos_ids(folder: Path) -> frozenset[int]:
    found: Any = None
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if found is None and path.exists():
            found = _read_object(path).get("eos_token_id")
    given = found if isinstance(found, list) else [found]
    return frozenset(token for token in given if isinstance(token, int) and token >= 0)  # nothing else is an id


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path.parent.name} contains a broken model: its {path.name} is not JSON.") from error
    return data if isinstance(data, dict) else {}
