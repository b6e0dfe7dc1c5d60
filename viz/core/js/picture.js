/* The picture in a run's prompt. */

import { el } from "./dom.js";

/** The picture with what it decided, in a run's payload or model; nothing for a run without one. */
export function pictureFigure({ picture, seen }) {
  if (!picture) return [];
  const image = Object.assign(document.createElement("img"), { src: picture.src, alt: picture.alt, width: 96, height: 96 });
  return [image, el("figcaption", "", el("b", "", seen), el("span", "", picture.caption))];
}
