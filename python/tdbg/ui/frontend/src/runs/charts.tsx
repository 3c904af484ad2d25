/** The curves of many runs on common axes: one chart for each loss and metric. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { series, themed, viridis } from "../colors";
import { AXES, AXIS_NAMES, type By, endOf, placeText, startOf } from "../compare/alignment";
import { onRing } from "../doorbell";
import { count, number, plain, shorten } from "../format";
import { axisOf, type Grid, loadGrid } from "../grid";
import { type Answer, adjust, type Route, setCursor, useAnswer } from "../hooks";
import { AxisNote, type Line, LineChart } from "../line_chart";
import { Card, Chips, Link, Select } from "../parts";
import { cursorOf, type Range, rangeOn } from "../run_data";
import type { ListedRun } from "../types";
import { type Column, shortMetric } from "./columns";
import type { Selection } from "./selection";
import { SMOOTHINGS, smoothed } from "./smoothing";

const COLUMNS = 500;
const HEIGHT = 230;
const GUTTER = 62;
/** So many charts are drawn before somebody asks for more. */
const MORE = 12;
/** Beyond so many runs a colour of its own is no help. */
const MOST_COLORS = 7;
/** Charts of runs that train are asked for again so often. */
const AGAIN_MS = 2000;

/** A number that grows when one of the runs has changed, now and then. */
function useAnyVersion(runs: ListedRun[]): number {
  const [version, setVersion] = useState(0);
  const ids = runs.map((run) => run.id).join();
  useEffect(() => {
    let timer = 0;
    const known = new Set(ids.split(","));
    const leave = onRing(({ changed }) => {
      if (timer || !changed || !Object.keys(changed).some((id) => known.has(id))) return;
      timer = window.setTimeout(() => {
        timer = 0;
        setVersion((before) => before + 1);
      }, AGAIN_MS);
    });
    return () => {
      clearTimeout(timer);
      leave();
    };
  }, [ids]);
  return version;
}

export function byOf(route: Route): By {
  return AXES.includes(route.by as By) ? (route.by as By) : "step";
}

/** The places that these runs have, and how to look at some of them. */
export function rangeOfRuns(runs: ListedRun[], by: By, route: Route): Range {
  return rangeOn(startOf(runs, by), endOf(runs, by), route);
}

export function ByChips({ by }: { by: By }) {
  return (
    <Chips
      label="Aligned by"
      options={AXES}
      names={AXIS_NAMES}
      value={by}
      onChange={(value) =>
        adjust({
          by: value === "step" ? undefined : value,
          from: undefined,
          to: undefined,
          at: undefined,
        })
      }
    />
  );
}

export function RunCharts({
  runs,
  selection,
  route,
}: {
  runs: ListedRun[];
  selection: Selection;
  route: Route;
}) {
  const { columns } = selection;
  const by = byOf(route);
  const range = rangeOfRuns(runs, by, route);
  const version = useAnyVersion(runs);
  const [most, setMost] = useState(MORE);
  const pins = (route.pins ?? "").split(",").filter(Boolean);
  const { found, error } = useMemo(
    () => searched(columns.metrics, route.charts ?? ""),
    [columns.metrics.join(), route.charts],
  );
  const names = [
    ...found.filter((name) => pins.includes(name)),
    ...found.filter((name) => !pins.includes(name)),
  ];
  const { colors, key } = useColors(runs, selection, route);
  return (
    <>
      <div class="run-tools">
        <div class="run-filter">
          <input
            type="search"
            aria-label="Charts whose names match a regular expression"
            placeholder="Charts: loss|accuracy"
            aria-invalid={!!error}
            spellcheck={false}
            value={route.charts ?? ""}
            onInput={(event) => adjust({ charts: event.currentTarget.value || undefined })}
          />
          <p class="filter-says" role="status">
            {error}
          </p>
        </div>
        <ByChips by={by} />
        <Smoothing route={route} />
        <AxisSetting route={route} />
        <ColorSetting selection={selection} route={route} />
        {!range.isWhole && (
          <button type="button" class="small" onClick={range.reset}>
            Show all of {placeText(by, range.whole.to)}
          </button>
        )}
      </div>
      {key}
      <div class="run-charts">
        {names.slice(0, most).map((name) => (
          <OneChart
            key={name}
            name={name}
            runs={runs}
            colors={colors}
            by={by}
            range={range}
            route={route}
            version={version}
            isPinned={pins.includes(name)}
            onPin={() =>
              adjust({
                pins:
                  (pins.includes(name)
                    ? pins.filter((each) => each !== name)
                    : [...pins, name]
                  ).join(",") || undefined,
              })
            }
          />
        ))}
      </div>
      {!columns.metrics.length && <p class="soft">These runs have no loss and no metric so far.</p>}
      {columns.metrics.length > 0 && !names.length && <p class="soft">No chart matches.</p>}
      {names.length > most && (
        <button type="button" onClick={() => setMost(most + MORE)}>
          Show {count(Math.min(MORE, names.length - most))} more of {count(names.length)}
        </button>
      )}
    </>
  );
}

function searched(names: string[], text: string): { found: string[]; error: string } {
  try {
    const pattern = new RegExp(text, "i");
    return { found: names.filter((name) => pattern.test(name)), error: "" };
  } catch (error) {
    return { found: names, error: plain((error as Error).message) };
  }
}

function Smoothing({ route }: { route: Route }) {
  const names = Object.fromEntries(
    SMOOTHINGS.map((each) => [each, each === "0" ? "not smoothed" : `smoothed over ${each} %`]),
  );
  return (
    <Select
      label="Smoothing, over a share of the steps"
      options={SMOOTHINGS}
      names={names}
      value={route.smooth ?? "0"}
      onChange={(value) => adjust({ smooth: value === "0" ? undefined : value })}
    />
  );
}

function AxisSetting({ route }: { route: Route }) {
  const names = { "": "axes by the data", linear: "linear axes", log: "log axes" };
  return (
    <Select
      label="Axes"
      options={["", "linear", "log"]}
      names={names}
      value={route.axis ?? ""}
      onChange={(value) => adjust({ axis: value || undefined })}
    />
  );
}

// --- Which colour a run has ------------------------------------------------------

interface Colored {
  colors: Map<string, string>;
  key: preact.JSX.Element | null;
}

function ColorSetting({ selection, route }: { selection: Selection; route: Route }) {
  const options = ["", "verdict", ...numericColumns(selection).map((each) => each.id)];
  const label = (id: string) => selection.columns.find(id)?.label ?? id;
  const names = Object.fromEntries(
    options.map((id) => [id, id ? `colour: ${label(id)}` : "colour: usual"]),
  );
  return (
    <Select
      label="Colour by"
      options={options}
      names={names}
      value={route.color ?? ""}
      onChange={(value) => adjust({ color: value || undefined })}
    />
  );
}

export function numericColumns({ columns }: Selection): Column[] {
  const measured = columns.all.filter((each) => /^(best|last)\./.test(each.id));
  return [...columns.differing.filter((each) => each.isNumber), ...measured];
}

/** Of few runs each has a colour of its own; of many, those of a verdict or of a number. */
export function useColors(runs: ListedRun[], selection: Selection, route: Route): Colored {
  const by = route.color || (runs.length > MOST_COLORS ? "verdict" : "");
  if (!by) {
    const colors = new Map(runs.map((run, i) => [run.id, series(i)]));
    return { colors, key: <RunKey runs={runs} colors={colors} /> };
  }
  const column = by === "verdict" ? undefined : selection.columns.find(by);
  if (!column?.isNumber) return byVerdict(runs);
  return byNumber(runs, column);
}

function RunKey({ runs, colors }: { runs: ListedRun[]; colors: Map<string, string> }) {
  return (
    <p class="legend run-key">
      {runs.map((run) => (
        <Link key={run.id} to={{ run: run.id }} class="key">
          <i style={{ background: colors.get(run.id) }} />
          {shorten(run.name, 40)}
        </Link>
      ))}
    </p>
  );
}

function byVerdict(runs: ListedRun[]): Colored {
  const color = (run: ListedRun) => {
    if (run.counts?.error) return themed("error");
    return run.counts?.warning ? themed("warning-line") : themed("line");
  };
  const colors = new Map(runs.map((run) => [run.id, color(run)]));
  const kinds: [string, string][] = [
    ["errors", themed("error")],
    ["warnings", themed("warning-line")],
    ["nothing wrong", themed("line")],
  ];
  return {
    colors,
    key: (
      <p class="legend run-key">
        {kinds.map(([text, ink]) => {
          const n = [...colors.values()].filter((each) => each === ink).length;
          return (
            n > 0 && (
              <span key={text} class="key">
                <i style={{ background: ink }} />
                {text} ({count(n)})
              </span>
            )
          );
        })}
      </p>
    ),
  };
}

/** Colours of numbers by their order: one that is far from the others leaves them theirs. */
function byNumber(runs: ListedRun[], column: Column): Colored {
  const values = runs.map(column.of).filter((value) => typeof value === "number");
  const order = [...new Set(values)].sort((a, b) => a - b);
  const share = (value: number) => order.indexOf(value) / Math.max(1, order.length - 1);
  const colors = new Map(
    runs.map((run) => {
      const value = column.of(run);
      const ink = typeof value === "number" ? hex(viridis(0.92 * share(value))) : "#8a96a8";
      return [run.id, ink];
    }),
  );
  return {
    colors,
    key: (
      <p class="legend run-key">
        {plain(column.label)} {number(Math.min(...values))}
        <span class="ramp" />
        {number(Math.max(...values))} <span>by rank</span>
      </p>
    ),
  };
}

/** Where a value is between the least and the greatest; by logarithm where they are far apart. */
export function shareOf(values: number[]): (value: number) => number {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && high > 20 * low;
  const place = isLog ? Math.log : (value: number) => value;
  const span = place(high) - place(low);
  return (value) => (span ? (place(value) - place(low)) / span : 0.5);
}

function hex(rgb: string): string {
  return `#${rgb
    .match(/\d+/g)!
    .map((n) => Number(n).toString(16).padStart(2, "0"))
    .join("")}`;
}

// --- One chart -------------------------------------------------------------------

/** Rows of a grid as grids of their own, by name. */
export function rowsOf(grid: Grid): Map<string, Grid> {
  const { columns } = grid;
  const part = <T extends Float32Array | Uint32Array>(array: T, i: number) =>
    array.subarray(i * columns, (i + 1) * columns) as T;
  return new Map(
    grid.names.map((name, i) => [
      name,
      {
        ...grid,
        names: [name],
        low: part(grid.low, i),
        high: part(grid.high, i),
        mean: part(grid.mean, i),
        rows: part(grid.rows, i),
        bad: part(grid.bad, i),
      },
    ]),
  );
}

function useCurves(
  name: string,
  runs: ListedRun[],
  by: By,
  range: Range,
  version: number,
): Answer<Grid> {
  const run = runs.map((each) => each.id);
  const key = run.length ? JSON.stringify(["curves", name, run, by, range.from, range.to]) : "";
  const question = { path: "curves" as const, params: { run, name, by } };
  return useAnswer<Grid>(key, version, (signal) =>
    loadGrid({ ...question, from: range.from, to: range.to, most: COLUMNS, sure: 0 }, null, signal),
  );
}

function OneChart({
  name,
  runs,
  colors,
  by,
  range,
  route,
  version,
  isPinned,
  onPin,
}: {
  name: string;
  runs: ListedRun[];
  colors: Map<string, string>;
  by: By;
  range: Range;
  route: Route;
  version: number;
  isPinned: boolean;
  onPin: () => void;
}) {
  const { data, error } = useCurves(name, runs, by, range, version);
  const share = Number(route.smooth ?? 0) / 100;
  const places = share * (range.to - range.from);
  const raw = useMemo(
    () => linesOf(data, runs, colors),
    [data, runs.map((r) => r.id).join(), colorsKey(colors)],
  );
  const lines = useMemo(
    () =>
      places > 0
        ? [
            ...raw.map((line) => ({ ...line, isFaint: true })),
            ...raw.map((line) => ({ ...line, grid: smoothed(line.grid, places) })),
          ]
        : raw,
    [raw, places],
  );
  const axis = useMemo(
    () =>
      axisOf(
        raw.map((line) => line.grid),
        route,
      ),
    [raw, route.axis],
  );
  return (
    <Card
      title={<span title={plain(name)}>{shorten(shortMetric(name), 48)}</span>}
      aside={
        <button
          type="button"
          class="small pin"
          aria-pressed={isPinned}
          aria-label={`Pin ${plain(name)}`}
          onClick={onPin}
        >
          {isPinned ? "Pinned" : "Pin"}
        </button>
      }
    >
      <LineChart
        key={by}
        lines={lines}
        error={error}
        title={name}
        from={range.from}
        to={range.to}
        log={axis.isLog}
        height={HEIGHT}
        gutter={GUTTER}
        cursor={cursorOf(route)}
        place={(n) => placeText(by, n)}
        onRange={range.set}
        onReset={range.reset}
        onCursor={setCursor}
      />
      <p class="reading">
        {count(raw.length)} of {count(runs.length)} runs
        {places > 0 && " · raw behind the smoothed curve"}
        <AxisNote axis={axis} lines={raw} />
      </p>
    </Card>
  );
}

function colorsKey(colors: Map<string, string>): string {
  return [...colors.values()].join();
}

/** Lines of the runs that have something: those with a fault are drawn last, over the others. */
function linesOf(grid: Grid | null, runs: ListedRun[], colors: Map<string, string>): Line[] {
  if (!grid) return [];
  const rows = rowsOf(grid);
  const isMany = runs.length > MOST_COLORS;
  return [...runs]
    .sort((a, b) => Number(!!a.counts?.error) - Number(!!b.counts?.error))
    .flatMap((run) => {
      const own = rows.get(run.id);
      if (!own?.rows.some(Boolean)) return [];
      return [
        { label: plain(run.name), color: colors.get(run.id) ?? "#8a96a8", grid: own, isMany },
      ];
    });
}
