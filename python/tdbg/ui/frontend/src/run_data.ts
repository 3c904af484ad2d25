/** What the screens of one run share: the range, the run, its tensors, its envelopes. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getJson } from "./api";
import { completeOf, epochOf, onRing } from "./doorbell";
import { type Grid, loadGrid } from "./grid";
import { type Answer, go, type Route, useAnswer } from "./hooks";
import type { Run, Tensor } from "./types";

export interface Range {
  from: number;
  to: number;
  /** All that there is, and whether it is that. */
  whole: { from: number; to: number };
  isWhole: boolean;
  /** Whether the newest step is followed. */
  follows: boolean;
  set: (from: number, to: number) => void;
  reset: () => void;
}

export function useRun(id: string): Answer<Run> & { version: number } {
  const [{ version, last }, ring] = useState({ version: 0, last: -1 });
  useEffect(
    () =>
      onRing(
        ({ changed, last }) =>
          changed &&
          id in changed &&
          ring(({ version }) => ({ version: version + 1, last: last?.[id] ?? -1 })),
      ),
    [id],
  );
  const before = useRef<Run | null>(null);
  const answer = useAnswer<Run>(id && `run ${id}`, version, async (signal) => {
    const found = await getJson<Run>("run", { run: id }, signal);
    // What is the same stays the same object, and is not drawn again.
    for (const part of ["findings", "changes"] as const)
      if (JSON.stringify(found[part]) === JSON.stringify(before.current?.[part]))
        found[part] = before.current![part] as never;
    before.current = found;
    return found;
  });
  // The charts ask for a new step when the bell rings, and need not wait for what else is new.
  const data = useMemo(
    () =>
      answer.data && last > (answer.data.last_step ?? -1)
        ? { ...answer.data, last_step: last }
        : answer.data,
    [answer.data, last],
  );
  return { ...answer, data, version };
}

export function useTensors(run: Run | null): Tensor[] {
  const key = run ? `tensors ${run.id} ${run.n_tensors} ${run.attempts}` : "";
  const answer = useAnswer<Tensor[]>(
    key,
    0,
    async (signal) =>
      (await getJson<{ tensors: Tensor[] }>("tensors", { run: run!.id }, signal)).tensors,
  );
  return answer.data ?? [];
}

/** A step or another place, as the address has it. */
function placeIn(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

/** The steps that all charts show, as the address has them; all of them where it says nothing. */
export function rangeOf(run: Run, route: Route): Range {
  return rangeOn(run.first_step ?? 0, (run.last_step ?? 0) + 1, route);
}

/** The same between two places of any axis. */
export function rangeOn(first: number, end: number, route: Route): Range {
  const from = placeIn(route.from) ?? first;
  const to = placeIn(route.to) ?? end;
  return {
    from,
    to: Math.max(from + 1, to),
    whole: { from: first, to: end },
    isWhole: from <= first && to >= end,
    follows: route.to === undefined,
    set: (a, b) =>
      go({ from: a <= first ? undefined : String(a), to: b >= end ? undefined : String(b) }),
    reset: () => go({ from: undefined, to: undefined }),
  };
}

/** The cursor that all charts share, as the address has it. */
export function cursorOf(route: Route): number | undefined {
  return placeIn(route.at);
}

/** The rank that is looked at alone, if the run has it. */
export function rankOf(run: Run, route: Route): string | undefined {
  return route.rank !== undefined && route.rank in run.workers ? route.rank : undefined;
}

/** For how many steps a record of a tensor of a role stands; null: nobody knows. */
export function intervalOf(run: Run, role: string | undefined): number | null {
  return run.coverage.roles.find((each) => each.role === role)?.interval ?? null;
}

/** Whether tensors of a role were recorded at each step. */
export function isAtEachStep({ coverage }: Run, role: string): boolean {
  return (coverage.roles.find((each) => each.role === role)?.steps ?? 0) >= coverage.steps;
}

/** Whether there is a rank to choose. */
export function hasRanks(run: Run): boolean {
  return Object.keys(run.workers).length > 1;
}

export interface GridRequest {
  path: "envelope" | "curve" | "ranks" | "ratio";
  run: string;
  name?: string;
  role?: string;
  field?: string;
  mode?: string;
  worker?: string;
  from: number;
  to: number;
  most: number;
  /** The run that it is compared with, and what both are aligned by. */
  other?: string;
  by?: string;
}

// Where nobody says up to which place nothing more comes: rows of a device may come some
// steps late, and on an axis of milliseconds these lie further back.
const LATE = 64;
const LATE_MS = 60_000;

/** Envelopes that follow a run: only what is new is asked for, an old picture stays meanwhile. */
export function useGrid(request: GridRequest | null, version: number): Answer<Grid> {
  const held = useRef<{ key: string; grid: Grid | null }>({ key: "", grid: null });
  const { path, run, name, role, field, mode, worker, from, to, most, other, by } =
    request ?? ({} as GridRequest);
  const what = request
    ? JSON.stringify([
        path,
        run,
        other,
        epochOf(run, other),
        by,
        name,
        role,
        field,
        mode,
        worker,
        from,
      ])
    : "";
  const key = request ? `${what} ${most}` : "";
  const answer = useAnswer<Grid>(key, version * 1e7 + (to ?? 0), async (signal) => {
    const isStep = by === undefined || by === "step";
    const heard = isStep
      ? Math.min(completeOf(run), other === undefined ? Infinity : completeOf(other))
      : -1;
    const sure = heard >= 0 ? heard + 1 : to - (by === "time" ? LATE_MS : LATE);
    const before = held.current.key === what ? held.current.grid : null;
    const grid = await loadGrid(
      { path, params: { run, other, by, name, role, field, mode, worker }, from, to, most, sure },
      before,
      signal,
    );
    held.current = { key: what, grid };
    return grid;
  });
  return useMemo(() => answer, [answer.data, answer.error]);
}
