// How fast a replay runs.

export const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4];
const DENOMINATORS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100];
const REPLAY_SECONDS = 8; // default duration of the slowest lane

export function speedText(speed) {
  if (speed === 1) return "real time";
  return speed > 1 ? `${speed}× real time` : `1/${Math.round(1 / speed)} of real time`;
}

/** The speed at which `seconds` take about REPLAY_SECONDS, rounded to a simple number. */
export function fittingSpeed(seconds) {
  const wanted = REPLAY_SECONDS / Math.max(seconds, 1e-6);
  if (wanted <= 0.75) return wanted < 0.375 ? 4 : 2;
  const near = (best, d) => (Math.abs(Math.log(d / wanted)) < Math.abs(Math.log(best / wanted)) ? d : best);
  return 1 / DENOMINATORS.reduce(near);
}
