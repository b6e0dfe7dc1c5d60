/* Display texts of token ids, as of decoding/records/text.py. vocab: {id: [text, hex bytes or null, whether it is special]}. */

/** One text per token; a character split over several tokens is shown at the token that completes it. */
export function pieces(ids, vocab, special = false) {
  const newDecoder = () => new TextDecoder("utf-8", { ignoreBOM: true });
  let decoder = newDecoder();
  const shown = ids.map((id) => {
    const [text, hex, isSpecial] = vocab[id] || ["\ufffd"];
    if (hex != null) return decoder.decode(bytesOf(hex), { stream: true });
    const open = decoder.decode();
    decoder = newDecoder();
    return open + (isSpecial && !special ? "" : text);
  });
  if (shown.length) shown[shown.length - 1] += decoder.decode();
  return shown;
}

function bytesOf(hex) {
  const pairs = hex.match(/[0-9a-f]{2}/gi) || [];
  return pairs.length * 2 === hex.length ? new Uint8Array(pairs.map((pair) => parseInt(pair, 16))) : new Uint8Array([255]);
}

const NEAR = 3; // tokens before a position that may have left a character incomplete

/** Texts of ids that follow `context`. */
export function piecesAfter(context, ids, vocab) {
  const near = context.slice(-NEAR);
  return pieces([...near, ...ids], vocab, true).slice(near.length);
}
