// What a page may use of the player, and of what it is made of.

import { button, el, isNarrow } from "../../core/js/dom.js";
import { appendix } from "./appendix.js";
import { explainTerms, termed } from "./glossary.js";
import "./live.js";
import "./lookahead.js";
import { Player } from "./player.js";
import "./pointing.js";
import "./roving.js";
import "./shell.js";
import "./simulation.js";

export const mount = (root, options) => new Player(root, options);
export { appendix, button, el, explainTerms, isNarrow, termed };
