/* Display texts of token ids, as of decoding/records/text.py. vocab: {id: [text, hex bytes or null, whether it is special]}. */

/** The texts of successive tokens; a character split over several tokens is shown at the token that completes it. */
export class Joiner {
  constructor(vocab, special = false) {
    Object.assign(this, { vocab, special, decoder: null }); // a decoder holds the beginning of a character
  }

  next(id) {
    const [text, hex, isSpecial] = this.vocab[id] || ["\ufffd"];
    if (hex == null) return this.end() + (isSpecial && !this.special ? "" : text);
    this.decoder ??= new TextDecoder("utf-8", { ignoreBOM: true });
    return this.decoder.decode(bytesOf(hex), { stream: true });
  }

  /** What remains of a character that is not completed; the next token begins anew. */
  end() {
    const rest = this.decoder ? this.decoder.decode() : "";
    this.decoder = null;
    return rest;
  }
}

/** One text per token of `ids`. */
export function pieces(ids, vocab, special = false) {
  const joiner = new Joiner(vocab, special), shown = ids.map((id) => joiner.next(id));
  if (shown.length) shown[shown.length - 1] += joiner.end();
  return shown;
}

function bytesOf(hex) {
  const pairs = hex.match(/[0-9a-f]{2}/gi) || [];
  return pairs.length * 2 === hex.length ? new Uint8Array(pairs.map((pair) => parseInt(pair, 16))) : new Uint8Array([255]);
}

export const NEAR = 3; // tokens before a position that may have left a character incomplete

/** Texts of ids that follow `context`. */
export function piecesAfter(context, ids, vocab) {
  const near = context.slice(-NEAR);
  return pieces([...near, ...ids], vocab, true).slice(near.length);
}
