// What the page's HTML calls.

import { begin } from "./early.js";
import { learn } from "./learn.js";
import { hint, photograph, race } from "./page.js";
import { report } from "./report.js";

export { begin, hint, learn, photograph, race, report };
