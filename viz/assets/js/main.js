// What the page's HTML calls.

import { begin } from "./early.js";
import { learn } from "./learn.js";
import { hint, race } from "./page.js";
import { report } from "./report.js";

export { begin, hint, learn, race, report };
