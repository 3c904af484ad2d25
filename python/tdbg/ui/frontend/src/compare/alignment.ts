/** What runs are aligned by, and how a place on that axis is called. */
import { count } from "../format";
import type { Run } from "../types";

export const AXES = ["step", "global", "time", "wall"] as const;
export type By = (typeof AXES)[number];
export const AXIS_NAMES: Record<By, string> = {
  step: "step",
  global: "step with evaluation",
  time: "time",
  wall: "clock",
};

/** Places of time are milliseconds. */
export function placeText(by: By, place: number): string {
  if (by === "wall") return clockText(place);
  if (by !== "time") return count(place);
  const seconds = place / 1000;
  if (seconds < 10) return `${Number(seconds.toFixed(2))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const two = (n: number) => String(Math.floor(n) % 60).padStart(2, "0");
  return `${seconds < 7200 ? Math.floor(seconds / 60) : `${Math.floor(seconds / 3600)}:${two(seconds / 60)}`}:${two(seconds)}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Of midnight the day. */
function clockText(milliseconds: number): string {
  const date = new Date(Math.round(milliseconds / 1000) * 1000);
  const text = clock.format(date);
  return text === "00:00:00" ? day.format(date) : text;
}

type Placed = Pick<Run, "starts" | "ends">;

/** The first place of any run: on all axes but the clock's, where they are aligned. */
export function startOf(runs: Placed[], by: By): number {
  if (by !== "wall" || !runs.length) return 0;
  return Math.min(...runs.map((run) => run.starts.wall));
}

/** The place after the last one of any run. */
export function endOf(runs: Placed[], by: By): number {
  return Math.max(1, ...runs.map((run) => run.ends[by]));
}

/** How many times as large, of a binary logarithm. */
export function timesText(logarithm: number): string {
  if (Number.isNaN(logarithm)) return "–";
  if (Math.abs(logarithm) >= 40) return logarithm > 0 ? "∞ ×" : "0 ×";
  const times = 2 ** Math.abs(logarithm);
  const digits = times < 1.1 ? 4 : 3;
  const text =
    times >= 1e5
      ? times.toExponential(1).replace("+", "")
      : String(Number(times.toPrecision(digits)));
  return logarithm < 0 && text !== "1" ? `1/${text} ×` : `${text} ×`;
}
