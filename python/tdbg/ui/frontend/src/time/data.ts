/** What the screen TIME asks the server for: python/tdbg/ui/times.py. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getArrays, getJson, type Numbers, type Packed } from "../api";
import { epochOf } from "../doorbell";
import type { Grid } from "../grid";
import { type Answer, useAnswer } from "../hooks";
import type { Range } from "../run_data";
import type { Run } from "../types";

export interface PhaseShare {
  phase: string;
  name: string;
  share: number;
  total_ns: number;
  median_ns: number;
  p95_ns: number;
}

export interface Breakdown {
  title: string;
  n_steps: number;
  total_ns: number;
  median_ns: number;
  p95_ns: number;
  phases: PhaseShare[];
}

export interface WhatIf {
  workers: number[];
  wait_shares: number[];
  step_ns: number[];
  best: number;
  is_capped: boolean;
}

export interface Loader {
  loader: number;
  n_batches: number;
  workers: number;
  capacity: number;
  depth: number | null;
  wait_ns: (number | null)[];
  fetch_ns: (number | null)[];
  fetch_cpu_share: number | null;
  what_if: WhatIf | null;
  said: string;
}

export interface Facts {
  /** Why there is nothing else; empty: there is. */
  said: string;
  sentence: string;
  change: { rule: string; text: string } | null;
  breakdowns: Breakdown[];
  job: { name: string; seconds: number; share: number; is_productive: boolean }[];
  goodput: number | null;
  throughput: {
    steps_per_s: number;
    samples_per_s: number | null;
    tokens_per_s: number | null;
  } | null;
  /** What is odd about the shares, a sentence each. */
  remarks: string[];
  n_slow: number;
  slow: { step: number; worker: number; duration_ns: number; phase: string; excess_ns: number }[];
  loaders: Loader[];
  lateness: {
    source: "collectives" | "own work";
    ranks: { worker: string; median_ns: number; last_share: number; own_ns: number | null }[];
  } | null;
  operators: {
    device: string;
    window: string;
    total_ns: number;
    listed: { name: string; calls: number; self_ns: number; share: number }[];
    n_others: number;
  }[];
  lines: {
    phase: string;
    place: string;
    short_place: string;
    short_caller: string;
    share: number;
    share_of_all: number;
  }[];
  machine: {
    name: string;
    node: string;
    unit: string;
    least: number;
    p50: number;
    p95: number;
    p99: number;
    greatest: number;
  }[];
  memory: {
    name: string;
    limit: number | null;
    forecast: { slope: number; seconds: number; limit: number } | null;
  }[];
  /** The energy of the run, in words. */
  energy: string;
  own_cost: { sentence: string } | null;
  /** What was not recorded, and why, a sentence each. */
  lacks: string[];
}

/**
 * A profile grows once a second; its screen need not ask more often, and pauses for ten times as
 * long as the answer took: a server beside the training leaves it the processor.
 */
const SLOW_MS = 1000;
const PAUSE = 10;
/** Columns of the charts. */
const COLUMNS = 600;

/** A version that changes once in a while; the last one always comes. */
function useSlowly(version: number, took: { current: number }): number {
  const [shown, setShown] = useState(version);
  const last = useRef(0);
  useEffect(() => {
    const pause = Math.max(SLOW_MS, PAUSE * took.current);
    const wait = Math.max(0, last.current + pause - performance.now());
    const timer = setTimeout(() => {
      last.current = performance.now();
      setShown(version);
    }, wait);
    return () => clearTimeout(timer);
  }, [version]);
  return shown;
}

export function useTimes(
  run: Run,
  range: Range,
  version: number,
): { facts: Answer<Facts>; maps: Answer<Packed> } {
  const took = useRef(0);
  const slow = useSlowly(version, took);
  const facts = useAnswer<Facts>(`time ${run.id} ${epochOf(run.id)}`, slow, async (signal) => {
    const asked = performance.now();
    const found = await getJson<Facts>("time", { run: run.id }, signal);
    took.current = performance.now() - asked;
    return found;
  });
  const hasSteps = facts.data !== null && !facts.data.said && facts.data.sentence !== "";
  const ends = `${range.from} ${range.follows ? "" : range.to}`;
  const maps = useAnswer<Packed>(
    hasSteps ? `time maps ${run.id} ${epochOf(run.id)} ${ends}` : "",
    slow,
    (signal) =>
      getArrays(
        "time_maps",
        {
          run: run.id,
          start: range.from,
          stop: range.follows ? undefined : range.to,
          columns: COLUMNS,
        },
        signal,
      ),
  );
  return { facts, maps };
}

/** A chart of low, high and mean, as other charts of the page have it. */
export function gridOf(packed: Packed, name: string, label = name): Grid {
  const { edges } = packed.arrays;
  const values = (field: string) => packed.arrays[`${name}_${field}`] as Float32Array;
  const mean = values("mean");
  return {
    names: [label],
    start: edges[0],
    width: edges[1] - edges[0],
    columns: mean.length,
    low: values("low"),
    high: values("high"),
    mean,
    rows: packed.arrays[`${name}_rows`] as Uint32Array,
    bad: new Uint32Array(mean.length),
    end: edges[edges.length - 1],
    sure: edges[edges.length - 1],
  };
}

/** Rows of cells, NaN where there is none. */
export function cellsOf(
  packed: Packed,
  names: string[],
  mean: Numbers,
  low: Numbers = mean,
  high: Numbers = mean,
): Grid {
  const { edges } = packed.arrays;
  const rows = new Uint32Array(mean.length);
  mean.forEach((value, i) => {
    rows[i] = Number.isNaN(value) ? 0 : 1;
  });
  return {
    names,
    start: edges[0],
    width: edges[1] - edges[0],
    columns: edges.length - 1,
    low: low as Float32Array,
    high: high as Float32Array,
    mean: mean as Float32Array,
    rows,
    bad: new Uint32Array(mean.length),
    end: edges[edges.length - 1],
    sure: edges[edges.length - 1],
  };
}

export function useGridOf(packed: Packed | null, name: string, label?: string): Grid | null {
  return useMemo(
    () => (packed?.arrays[`${name}_mean`] ? gridOf(packed, name, label) : null),
    [packed, name, label],
  );
}
