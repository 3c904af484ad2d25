/** Durations in words, as python/tdbg/view/time/phases.py has them. */
import { number } from "../format";

export function duration(ns: number | null): string {
  if (ns === null || !Number.isFinite(ns)) return "–";
  if (ns >= 0.9995e9) return span(ns / 1e9);
  if (ns >= 0.9995e6) return `${number(Number((ns / 1e6).toPrecision(3)))} ms`;
  return `${number(Number((ns / 1e3).toPrecision(3)))} µs`;
}

export function span(seconds: number): string {
  if (seconds < 60) return `${number(Number(seconds.toPrecision(3)))} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A sentence with a capital letter. */
export function upper(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
