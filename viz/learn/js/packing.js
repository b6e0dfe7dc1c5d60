/* A run in a link. */

const MAX_PACKED = 60000, MAX_UNPACKED = 8 * 2 ** 20; // characters of a fragment; bytes of a run

/** A run file, compressed, in characters that are valid in a link. The tokens' alternatives are left out. */
export async function packRun(text) {
  const run = JSON.parse(text);
  for (const lane of run.lanes) {
    lane.repeats = lane.repeats.slice(0, 1);
    for (const it of lane.iterations) for (const token of [...it.drafted, ...(it.emitted ? [it.emitted] : [])]) token.draft_top = token.target_top = [];
  }
  run.settings.repeats = 1;
  const stream = new Blob([JSON.stringify(run)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let letters = "";
  for (const byte of bytes) letters += String.fromCharCode(byte);
  const packed = btoa(letters).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  if (packed.length > MAX_PACKED) throw new Error("This run is too large for a link: save its file on the Race tab and share that.");
  return packed;
}

export async function unpackRun(packed) {
  const tooLarge = new Error("The run in this link is larger than a link may hold: ask for its file.");
  if (packed.length > MAX_PACKED) throw tooLarge;
  try {
    const letters = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    const parts = [];
    for (let size = 0, part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      size += part.value.length;
      if (size > MAX_UNPACKED) throw tooLarge; // a small link can unpack to gigabytes
    }
    return await new Blob(parts).text();
  } catch (error) {
    throw error === tooLarge ? error : new Error("The run in this link cannot be read: the link was cut or changed.", { cause: error });
  }
}
