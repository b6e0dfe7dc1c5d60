// What a page may use of the player.

import { appendix } from "./appendix.js";
import "./branches.js";
import "./live.js";
import "./lookahead.js";
import { Player } from "./player.js";
import "./pointing.js";
import "./shell.js";
import "./simulation.js";

export const mount = (root, options) => new Player(root, options);
export { appendix };
