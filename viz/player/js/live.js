// A run under way: events arrive, lanes grow.

/** Joins the bytes of characters that are split over tokens onto the token that completes them. */
class Utf8Joiner {
  constructor(texts) { this.texts = texts; this.open = []; }

  /** Texts of one iteration's tokens [[id, fate]]; rejected and dropped ones leave no trace in what follows. */
  join(tokens) {
    return tokens.map(([id, fate], i) => {
      const kept = fate !== "rejected" && fate !== "dropped";
      if (kept || i === 0 || tokens[i - 1][1] === "accepted") this.aside = this.open.slice();
      const [text, open] = this.piece(id, kept ? this.open : this.aside);
      if (kept) this.open = open; else this.aside = open;
      return text;
    });
  }

  piece(id, open) {
    const [text, hex] = this.texts.get(id) || ["\ufffd", null];
    if (hex == null) return [(open.length ? "\ufffd" : "") + text, []];
    const bytes = open.concat((hex.match(/../g) || []).map((pair) => parseInt(pair, 16)));
    const whole = bytes.length - unfinished(bytes);
    return [new TextDecoder().decode(new Uint8Array(bytes.slice(0, whole))), bytes.slice(whole)];
  }
}

/** How many bytes at the end begin a character that is not complete yet. */
function unfinished(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

const Live = {
  /** Events of a run under way. Returns the number of the event wanted next. */
  apply(delta) {
    if (this.run !== delta.run) { this.run = delta.run; this.expected = 0; }
    if (delta.seq > this.expected) {
      if (this.options.onGap) this.options.onGap(delta.run, this.expected);
      return this.expected;
    }
    delta.events.slice(this.expected - delta.seq).forEach((event) => this.take(event));
    this.expected = Math.max(this.expected, delta.seq + delta.events.length);
    return this.expected;
  },

  take({ kind, data }) {
    const acts = {
      queued: () => this.tellStatus(data.place
        ? `Waiting: ${data.place} ${data.place === 1 ? "comparison stands" : "comparisons stand"} before this one.`
        : "Starting."),
      started: () => this.startLive(data),
      progress: () => this.tellStatus(data.message, data.fraction),
      lane_started: () => this.startLane(data),
      iterations: () => this.addIterations(data),
      lane_finished: () => {},
      finished: () => this.load(data.payload),
      cancelled: () => this.endLive("Stopped. What had been decoded until then stays on the page."),
      failed: () => this.endLive(data.message),
    };
    if (acts[kind]) acts[kind]();
  },

  tellStatus(text, fraction) {
    this.status.hidden = false;
    this.status.textContent = text;
    this.status.style.setProperty("--sd-share", fraction == null ? 0 : clamp(fraction, 0, 1));
  },

  startLive(data) {
    this.pause();
    this.forget();
    this.payload = null;
    this.live = { texts: new Map(), joiners: [], scaled: false };
    this.sentence.textContent = "Decoding, one lane after another on a quiet machine; then the race plays together.";
    this.fact.textContent = "";
    this.verdict.textContent = "";
    this.verdict.className = "sd-verdict";
    this.badge.replaceChildren(el("span", "sd-pill sd-live", "live"));
    this.lanes = data.lanes.map((lane) => new Lane(typeof lane === "string" ? { lane, name: lane } : lane));
    this.live.joiners = this.lanes.map(() => new Utf8Joiner(this.live.texts));
    this.panels.replaceChildren();
    this.thresholds = [];
    this.race.classList.add("sd-live");
    this.buildLanes(data.prompt || "");
    this.select(0);
  },

  startLane({ lane, repeat }) {
    if (!this.live) return;
    this.rows.forEach((row, i) => row.classList.toggle("sd-onclock", i === lane));
    const again = repeat > 0 ? `, repeat ${repeat + 1} (for the range of its speedup)` : "";
    this.tellStatus(`On the clock: ${this.lanes[lane].name}${again}. `
      + "The others wait: run at once, they would slow each other.");
    if (repeat === 0) this.shown[lane] = true;
    this.tab = lane;
    this.showColumns();
  },

  addIterations({ lane, repeat, items, texts }) {
    if (!this.live) return;
    for (const [id, entry] of Object.entries(texts || {})) this.live.texts.set(Number(id), entry);
    if (repeat !== 0) return;
    const model = this.lanes[lane];
    for (const item of items) {
      const all = item.e ? item.d.concat([item.e]) : item.d;
      const fates = all.map(([, fate]) => LETTERS[fate]).join("");
      model.add(fates, this.live.joiners[lane].join(all), item.start, ...item.t); // draft, check, policy, rest
    }
    model.sums = null;
    this.views[lane].build();
    this.views[lane].plan(Infinity);
    this.views[lane].paint(true);
    this.strips[lane].build();
    this.showFigures(model, model.iterations.length, false);
    this.stretchAxis(lane);
  },

  /** The axis grows in steps, so that the strips do not shrink all the time. */
  stretchAxis(lane) {
    const needed = Math.max(...this.lanes.map((one) => one.end));
    if (needed > this.total * 0.98 || !this.live.scaled) {
      this.live.scaled = true;
      this.total = needed * 1.25;
      for (const strip of this.strips) strip.scale(this.total);
      this.buildAxis();
    } else this.strips[lane].scale(this.total);
  },

  endLive(text) {
    this.tellStatus(text);
    if (this.live) this.sentence.textContent = "This run did not reach its end, so there is nothing to compare.";
    this.rows.forEach((row) => row.classList.remove("sd-onclock"));
  },
};

Object.assign(Player.prototype, Live);
