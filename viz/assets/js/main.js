// What the page's HTML calls.

import { begin } from "./early.js";
import { filledIn, hint, keepForm, keptForm, laneFault, lines, photograph } from "./form.js";
import { learn } from "./learn.js";
import { race } from "./page.js";
import { report } from "./report.js";

export { begin, filledIn, hint, keepForm, keptForm, laneFault, learn, lines, photograph, race, report };
