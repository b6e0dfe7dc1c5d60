/* A run in a link. */

const MAX_PACKED = 60000, MAX_UNPACKED = 8 * 2 ** 20; // characters of a fragment; bytes of a run

/** The run file that a link carries after "#run=": deflated, in base64 for addresses. */
export async function unpackRun(packed) {
  const tooLarge = new Error("The run in this link is larger than a link may hold: ask for its file.");
  if (packed.length > MAX_PACKED) throw tooLarge;
  try {
    const letters = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
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
