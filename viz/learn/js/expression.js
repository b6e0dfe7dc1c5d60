/* A policy in a few lines: assignments and, on the last line, the condition for guessing on.
 *
 *   doubt = 1 - product
 *   doubt < 0.3 and guessed < 12
 *
 * A hand-written parser turns it into closures; the text is never passed to the browser's own interpreter.
 */

import { Policy } from "../../core/js/policies.js";
import { checkCost, plainCost } from "../../core/js/replay.js";

export const MAX_SOURCE = 600, MAX_DEPTH = 40;
const FUNCTIONS = {
  min: [2, Math.min], max: [2, Math.max], abs: [1, Math.abs], sqrt: [1, (x) => Math.sqrt(Math.max(0, x))],
  log: [1, (x) => Math.log(Math.max(1e-12, x))], exp: [1, (x) => Math.exp(Math.min(50, x))],
};
const TOKEN = /\s*(?:(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)|([A-Za-z_]\w*)|(<=|>=|==|!=|[-+*/^(),<>=]))/y;

export class ExpressionError extends Error {}

/** (values) -> whether to guess on. names: the variables that may be read. Throws an ExpressionError with a sentence. */
function parsePolicy(source, names) {
  if (source.length > MAX_SOURCE) throw new ExpressionError(`The policy is too long: at most ${MAX_SOURCE} characters.`);
  const lines = source.split(/[\n;]/).map((line) => line.replace(/#.*/, "").trim()).filter(Boolean);
  if (!lines.length) throw new ExpressionError("Write a condition for guessing on, for example: p > 0.4");
  const known = new Set([...names, "true", "false"]), steps = [];
  lines.forEach((line, i) => {
    const parser = new ExpressionParser(line, known, i + 1);
    const last = i === lines.length - 1, target = parser.assignment();
    if (target && last) throw new ExpressionError(`The last line must be the condition for guessing on, but it sets ${target}.`);
    if (!target && !last) throw new ExpressionError(`Line ${i + 1} has no effect: write name = …, or make it the last line.`);
    steps.push([target, parser.whole()]);
    if (target) known.add(target);
  });
  return (values) => {
    const scope = Object.assign(Object.create(null), values, { true: 1, false: 0 });
    const answers = steps.map(([target, value]) => (scope[target] = value(scope)));
    return Boolean(answers.at(-1)); // NaN is none
  };
}

/** Operators by how tightly they bind; all but ^ are left-associative. */
const OPERATORS = {
  or: [1, (a, b) => (a || b ? 1 : 0)], and: [2, (a, b) => (a && b ? 1 : 0)],
  "<": [4, (a, b) => +(a < b)], ">": [4, (a, b) => +(a > b)], "<=": [4, (a, b) => +(a <= b)], ">=": [4, (a, b) => +(a >= b)],
  "==": [4, (a, b) => +(a === b)], "!=": [4, (a, b) => +(a !== b)],
  "+": [5, (a, b) => a + b], "-": [5, (a, b) => a - b], "*": [6, (a, b) => a * b], "/": [6, (a, b) => a / b], "^": [8, (a, b) => a ** b],
};
const NOT = 3, NEGATIVE = 7, COMPARISON = 4, POWER = 8;

/** Precedence climbing (Pratt 1973). Every part becomes a closure: (scope of variables) -> number. */
class ExpressionParser {
  constructor(text, names, line) {
    Object.assign(this, { names, line, at: 0, depth: 0, tokens: [] });
    for (let from = 0; text.slice(from).trim(); from = TOKEN.lastIndex) {
      TOKEN.lastIndex = from;
      const match = TOKEN.exec(text);
      if (!match) throw this.fault(`“${text.slice(from).trim()[0]}” is not understood here.`);
      const [, number, name, sign] = match;
      this.tokens.push(number != null ? { number: Number(number), text: number } : { name, text: name || sign });
    }
  }

  fault(text) { return new ExpressionError(`Line ${this.line}: ${text}`); }
  get next() { return this.tokens[this.at] || {}; }

  take(text) {
    if (this.next.text !== text) return false;
    this.at += 1;
    return true;
  }

  need(text, otherwise) { if (!this.take(text)) throw this.fault(otherwise); }

  /** The name that the line defines, or null. */
  assignment() {
    const [first, second] = this.tokens;
    if (!first?.name || second?.text !== "=") return null;
    if (this.names.has(first.name) || first.name in FUNCTIONS || ["and", "or", "not"].includes(first.name)) {
      throw this.fault(`${first.name} is already defined: choose another name.`);
    }
    this.at = 2;
    return first.name;
  }

  whole() {
    const value = this.expression();
    if (this.at < this.tokens.length) throw this.fault(`“${this.next.text}” is unexpected here.`);
    return value;
  }

  /** An operand and all operators after it that bind at least as tightly as `least`. */
  expression(least = 1) {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw this.fault("the brackets are nested too deeply.");
    let left = this.operand();
    for (let most = POWER; Object.hasOwn(OPERATORS, this.next.text ?? "");) {
      const [binds, act] = OPERATORS[this.next.text], before = left;
      if (binds < least || binds > most) break;
      this.at += 1;
      const right = this.expression(binds === POWER ? NEGATIVE : binds + 1); // what is negative may be an exponent
      left = (scope) => act(before(scope), right(scope));
      if (binds === COMPARISON) most = COMPARISON - 1; // 1 < 2 < 3 has no meaning
    }
    this.depth -= 1;
    return left;
  }

  operand() {
    if (this.take("not")) { const value = this.expression(NOT); return (scope) => (value(scope) ? 0 : 1); }
    if (this.take("-")) { const value = this.expression(NEGATIVE); return (scope) => -value(scope); }
    const { number, name, text } = this.next;
    this.at += 1;
    if (number != null) return () => number;
    if (name && Object.hasOwn(FUNCTIONS, name)) return this.call(name);
    if (name && this.names.has(name)) return (scope) => Number(scope[name]);
    if (name) throw this.fault(`there is no “${name}”. Known names: ${[...this.names].join(", ")}.`);
    if (text !== "(") throw this.fault(text ? `“${text}” is unexpected here.` : "the line ends too early.");
    const value = this.expression();
    this.need(")", "a closing bracket is missing.");
    return value;
  }

  call(name) {
    const [count, act] = FUNCTIONS[name], values = [];
    this.need("(", `write ${name}(…).`);
    do values.push(this.expression()); while (this.take(","));
    this.need(")", "a closing bracket is missing.");
    if (values.length !== count) throw this.fault(`${name} takes ${count} value${count > 1 ? "s" : ""}.`);
    return (scope) => act(...values.map((value) => value(scope)));
  }
}

export const WRITTEN_NAMES = ["p", "entropy", "product", "guessed", "position", "held_last", "guessed_last", "c", "check", "plain"];

/** A written policy as a lane. It is asked after every guess, and before the first one with p = 1 and entropy = 0. */
export class Written extends Policy {
  constructor(source) { super("written"); this.holds = parsePolicy(source, WRITTEN_NAMES); }
  reset({ costs, draft }) {
    this.product = 1;
    this.last = { held_last: 0, guessed_last: 0 };
    this.costs = costs;
    this.known = { c: costs.c[draft], plain: plainCost(costs) };
  }
  wantsMore({ start, guesses }) {
    const guessed = guesses.length, last = guesses[guessed - 1];
    this.product = guessed ? this.product * last.p : 1;
    return this.holds({
      p: last ? last.p : 1, entropy: last ? last.entropy : 0, product: this.product, guessed, position: start + guessed,
      ...this.last, ...this.known, check: checkCost(this.costs, guessed + 2) - checkCost(this.costs, guessed + 1),
    });
  }
  observe(n, accepted) { this.last = { held_last: accepted, guessed_last: n }; }
}
