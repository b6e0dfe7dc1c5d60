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

/** {wantsMore(values) -> boolean}. names: the variables that may be read. Throws an ExpressionError with a sentence. */
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
    const value = parser.whole();
    if (target) { steps.push([target, value]); known.add(target); } else steps.push([null, value]);
  });
  return {
    wantsMore(values) {
      const scope = Object.assign(Object.create(null), values, { true: 1, false: 0 });
      let answer = 0;
      for (const [target, value] of steps) {
        answer = value(scope);
        if (target) scope[target] = answer;
      }
      return Boolean(answer) && !Number.isNaN(answer);
    },
  };
}

class ExpressionParser {
  constructor(text, names, line) {
    Object.assign(this, { names, line, at: 0, depth: 0, tokens: [] });
    for (let from = 0; from < text.length;) {
      if (!text.slice(from).trim()) break;
      TOKEN.lastIndex = from;
      const match = TOKEN.exec(text);
      if (!match) throw this.fault(`“${text.slice(from).trim()[0]}” is not understood here.`);
      const [, number, name, sign] = match;
      this.tokens.push(number != null ? { number: Number(number) } : name ? { name } : { sign });
      from = TOKEN.lastIndex;
    }
  }

  fault(text) { return new ExpressionError(`Line ${this.line}: ${text}`); }
  get next() { return this.tokens[this.at] || {}; }

  take(...signs) {
    const { sign, name } = this.next;
    if (!signs.includes(sign) && !signs.includes(name)) return null;
    this.at += 1;
    return sign || name;
  }

  assignment() {
    const [first, second] = this.tokens;
    if (!first || !first.name || !second || second.sign !== "=") return null;
    if (this.names.has(first.name) || first.name in FUNCTIONS || ["and", "or", "not"].includes(first.name)) {
      throw this.fault(`${first.name} is already defined: choose another name.`);
    }
    this.at = 2;
    return first.name;
  }

  whole() {
    const value = this.either();
    if (this.at < this.tokens.length) {
      const { number, name, sign } = this.next;
      throw this.fault(`“${number ?? name ?? sign}” is unexpected here.`);
    }
    return value;
  }

  either() { return this.chain(() => this.both(), { or: (a, b) => (s) => (a(s) || b(s) ? 1 : 0) }); }
  both() { return this.chain(() => this.negated(), { and: (a, b) => (s) => (a(s) && b(s) ? 1 : 0) }); }

  negated() {
    if (!this.take("not")) return this.comparison();
    const value = this.deeper(() => this.negated());
    return (s) => (value(s) ? 0 : 1);
  }

  comparison() {
    const left = this.sum(), sign = this.take("<", ">", "<=", ">=", "==", "!=");
    if (!sign) return left;
    const right = this.sum();
    const compare = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
      "==": (a, b) => a === b, "!=": (a, b) => a !== b }[sign];
    return (s) => (compare(left(s), right(s)) ? 1 : 0);
  }

  sum() {
    return this.chain(() => this.product(), { "+": (a, b) => (s) => a(s) + b(s), "-": (a, b) => (s) => a(s) - b(s) });
  }

  product() {
    return this.chain(() => this.power(), { "*": (a, b) => (s) => a(s) * b(s), "/": (a, b) => (s) => a(s) / b(s) });
  }

  power() {
    if (this.take("-")) {
      const value = this.deeper(() => this.power());
      return (s) => -value(s);
    }
    const base = this.atom();
    if (!this.take("^")) return base;
    const exponent = this.deeper(() => this.power());
    return (s) => base(s) ** exponent(s);
  }

  chain(part, signs) {
    let value = part();
    for (let sign = this.take(...Object.keys(signs)); sign; sign = this.take(...Object.keys(signs))) {
      value = signs[sign](value, part());
    }
    return value;
  }

  deeper(part) {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw this.fault("the brackets are nested too deeply.");
    const value = part();
    this.depth -= 1;
    return value;
  }

  atom() {
    const { number, name, sign } = this.next;
    this.at += 1;
    if (number != null) return () => number;
    if (name && Object.hasOwn(FUNCTIONS, name)) return this.call(name);
    if (name && this.names.has(name)) return (s) => Number(s[name]);
    if (name) throw this.fault(`there is no “${name}”. Known names: ${[...this.names].join(", ")}.`);
    if (sign === "(") {
      const value = this.deeper(() => this.either());
      if (!this.take(")")) throw this.fault("a closing bracket is missing.");
      return value;
    }
    throw this.fault(sign ? `“${sign}” is unexpected here.` : "the line ends too early.");
  }

  call(name) {
    const [count, act] = FUNCTIONS[name], values = [];
    if (!this.take("(")) throw this.fault(`write ${name}(…).`);
    do values.push(this.deeper(() => this.either())); while (this.take(","));
    if (!this.take(")")) throw this.fault("a closing bracket is missing.");
    if (values.length !== count) throw this.fault(`${name} takes ${count} value${count > 1 ? "s" : ""}.`);
    return (s) => act(...values.map((value) => value(s)));
  }
}

export const WRITTEN_NAMES = ["p", "entropy", "product", "guessed", "position", "held_last", "guessed_last", "c", "check", "plain"];

/** A written policy as a lane. It is asked after every guess, and before the first one with p = 1 and entropy = 0. */
export class Written extends Policy {
  constructor(source) { super("written"); this.parsed = parsePolicy(source, WRITTEN_NAMES); }
  reset({ costs, draft }) {
    this.product = 1;
    this.last = { held_last: 0, guessed_last: 0 };
    this.costs = costs;
    this.known = { c: costs.c[draft], plain: plainCost(costs) };
  }
  wantsMore({ start, guesses }) {
    const guessed = guesses.length, last = guesses[guessed - 1];
    this.product = guessed ? this.product * last.p : 1;
    return this.parsed.wantsMore({
      p: last ? last.p : 1, entropy: last ? last.entropy : 0, product: this.product, guessed, position: start + guessed,
      ...this.last, ...this.known, check: checkCost(this.costs, guessed + 2) - checkCost(this.costs, guessed + 1),
    });
  }
  observe(n, accepted) { this.last = { held_last: accepted, guessed_last: n }; }
}
