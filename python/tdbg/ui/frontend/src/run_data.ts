/** What the screens of one run share: the range, the run, its tensors, its envelopes. */
import { useMemo, useRef } from "preact/hooks";
import { getJson } from "./api";
import { loadGrid, type Grid } from "./grid";
import { go, useAnswer, useVersion, type Answer, type Route } from "./hooks";
import type { Run, Tensor } from "./types";

export interface Range {
  from: number;
  to: number;
  /** Whether the newest step is followed. */
  follows: boolean;
  set: (from: number, to: number) => void;
  reset: () => void;
}

export function useRun(id: string): Answer<Run> & { version: number } {
  const version = useVersion(id);
  const answer = useAnswer<Run>(id && `run ${id}`, version, (signal) => getJson<Run>("run", { run: id }, signal));
  return { ...answer, version };
}

export function useTensors(run: Run | null): Tensor[] {
  const key = run ? `tensors ${run.id} ${run.n_tensors} ${run.attempts}` : "";
  const answer = useAnswer<Tensor[]>(key, 0, async (signal) => (await getJson<{ tensors: Tensor[] }>("tensors", { run: run!.id }, signal)).tensors);
  return answer.data ?? [];
}

/** The steps that all charts show, as the address has them; all of them where it says nothing. */
export function rangeOf(run: Run, route: Route): Range {
  return rangeOn(run.first_step ?? 0, (run.last_step ?? 0) + 1, route);
}

/** The same between two places of any axis. */
export function rangeOn(first: number, end: number, route: Route): Range {
  const given = (text: string | undefined) => (text !== undefined && /^\d{1,15}$/.test(text) ? Number(text) : null);
  const from = given(route.from) ?? first;
  const to = given(route.to) ?? end;
  return {
    from,
    to: Math.max(from + 1, to),
    follows: route.to === undefined,
    set: (a, b) => go({ from: a <= first ? undefined : String(a), to: b >= end ? undefined : String(b) }),
    reset: () => go({ from: undefined, to: undefined }),
  };
}

export interface GridRequest {
  path: "envelope" | "curve" | "ranks" | "ratio";
  run: string;
  name?: string;
  role?: string;
  field?: string;
  mode?: string;
  from: number;
  to: number;
  most: number;
  /** The run that it is compared with, and what both are aligned by. */
  other?: string;
  by?: string;
}

// On an axis of milliseconds what came late lies further back than so many steps.
const LATE_MS = 60_000;

/** Envelopes that follow a run: only what is new is asked for, an old picture stays meanwhile. */
export function useGrid(request: GridRequest | null, version: number): Answer<Grid> {
  const held = useRef<{ key: string; grid: Grid | null }>({ key: "", grid: null });
  const { path, run, name, role, field, mode, from, to, most, other, by } = request ?? ({} as GridRequest);
  const what = request ? JSON.stringify([path, run, other, by, name, role, field, mode, from]) : "";
  const key = request ? `${what} ${most}` : "";
  const answer = useAnswer<Grid>(key, version * 1e7 + (to ?? 0), async (signal) => {
    const before = held.current.key === what ? held.current.grid : null;
    const grid = await loadGrid({ path, params: { run, other, by, name, role, field, mode }, from, to, most, late: by === "time" ? LATE_MS : undefined }, before, signal);
    held.current = { key: what, grid };
    return grid;
  });
  return useMemo(() => answer, [answer.data, answer.error]);
}

/** How many times the least positive value the greatest is; 1 where some are negative. */
export function spans(grid: Grid, limits: { value: number }[] = []): number {
  const positive = limits.map((each) => each.value).filter((value) => value > 0);
  let low = Math.min(Infinity, ...positive);
  let high = Math.max(0, ...positive);
  for (let j = 0; j < grid.columns; j++) {
    if (!grid.rows[j] || Number.isNaN(grid.low[j])) continue;
    if (grid.low[j] < 0) return 1;
    if (grid.low[j] > 0) low = Math.min(low, grid.low[j]);
    high = Math.max(high, grid.high[j]);
  }
  return high / low;
}
