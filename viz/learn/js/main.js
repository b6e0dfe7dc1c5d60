/* What a page, and a test, may use of the Learn tab. */

import { RunModel } from "../../core/js/run.js";
import { POLICIES, makePolicy, parseLane } from "../../core/js/policies.js";
import { unpackRun } from "../../core/js/files.js";
import { Replay, breakEven, cutChain, expectedTokens, modelSpeedup, simulate, withCosts } from "../../core/js/replay.js";
import { Written } from "./expression.js";
import { Learn, mountPage } from "./learn.js";
import { answersOf } from "./questions.js";

export const mount = (root, options) => new Learn(root, options);
export { POLICIES, Replay, RunModel, Written, answersOf, breakEven, cutChain, expectedTokens, makePolicy, modelSpeedup, mountPage, parseLane, simulate, unpackRun, withCosts };
