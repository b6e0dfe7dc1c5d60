// An iteration whose guesses branch opens as a tree, with what is known of the chosen guess below it.

import { el } from "../../core/js/dom.js";
import { costSentence, iterationSentence } from "../../core/js/sentences.js";
import { treeOf } from "../../core/js/tree.js";
import { Player } from "./player.js";
import { detailNodes } from "./popup.js";

const Branches = {
  isBranching({ lane, token }) { return Boolean(this.laneAt(lane).iterations[token.iteration].parents); },

  /** The token after the guesses that a button in the text stands for. */
  ownTokenOf(fork) {
    const lane = Number(fork.closest(".sd-text").dataset.lane), it = this.laneAt(lane).iterations[fork.sdFork];
    return { lane, node: fork, token: it.own ?? it.guesses[it.accepted] };
  },

  /** The tree of a token's iteration, from the keyboard (`focus`) with that token in focus. */
  openTree({ lane, node, token }, focus) {
    const it = this.laneAt(lane).iterations[token.iteration], details = el("div", "sd-tree-details");
    const choose = (k) => this.showGuess({ lane, node, token: it.tokens[k] }, details);
    const tree = treeOf(it, { choose, chosen: token.index });
    this.pause();
    this.holdPopup(true);
    this.popup.show(node, [el("p", "sd-tree-about", iterationSentence(this.laneAt(lane), token.iteration)), tree, details]);
    choose(token.index);
    const chosen = tree.querySelector("[aria-pressed=true]");
    chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) chosen.focus({ preventScroll: true });
  },

  /** Details of one guess, under the tree. */
  async showGuess({ lane, node, token }, holder) {
    this.wanted = token;
    this.mark(token.position, { from: lane, chosen: token });
    this.emit(lane, token.position);
    const details = await this.fetchDetails(lane, token), it = this.laneAt(lane).iterations[token.iteration];
    if (this.wanted !== token) return;
    const cost = this.laneAt(lane).costs ? [el("p", "sd-mute", costSentence(it))] : [];
    holder.replaceChildren(...detailNodes(details), ...cost, this.wayToExplain(lane, token) ?? "");
    this.popup.place(node);
  },
};

Object.assign(Player.prototype, Branches);
