/**
 * Cells of an envelope: a tensor's rows within some steps.
 *
 * Columns are as wide as a power of two, and begin at its multiples: what was drawn stays
 * where it is as a run grows, and only the newest columns are asked for again.
 */
import { getArrays, type Params } from "./api";
import { number } from "./format";

export interface Grid {
  names: string[];
  /** First step of the first column. */
  start: number;
  /** Steps of a column. */
  width: number;
  columns: number;
  /** By name and column. */
  low: Float32Array;
  high: Float32Array;
  mean: Float32Array;
  rows: Uint32Array;
  bad: Uint32Array;
  /** The step after the last one that was asked for. */
  end: number;
  /** The step before which nothing more was to come when it was asked for. */
  sure: number;
}

export interface GridQuestion {
  path: "envelope" | "curve" | "curves" | "ranks" | "ratio";
  params: Params;
  from: number;
  /** The step after the last one. */
  to: number;
  most: number;
  /** The place before which nothing more comes. */
  sure: number;
}

export function columnWidth(from: number, to: number, most: number): number {
  let width = 1;
  while (Math.ceil(to / width) - Math.floor(from / width) > most) width *= 2;
  return width;
}

export async function loadGrid(
  question: GridQuestion,
  before: Grid | null,
  signal: AbortSignal,
): Promise<Grid> {
  const { path, params, from, to, most, sure } = question;
  const width = columnWidth(from, to, most);
  const start = Math.floor(from / width) * width;
  const columns = Math.max(1, Math.ceil(to / width) - start / width);
  const keeps =
    before !== null &&
    before.width === width &&
    before.start === start &&
    before.columns <= columns;
  const kept = keeps
    ? Math.max(0, Math.floor(Math.min(before.sure, before.end, to) / width) - start / width)
    : 0;
  const part = await getArrays(
    path,
    {
      ...params,
      start: start + kept * width,
      stop: start + columns * width,
      columns: columns - kept,
    },
    signal,
  );
  const names: string[] = part.header.names ?? [String(params.name)];
  if (
    kept &&
    (names.length !== before!.names.length || names.some((name, i) => name !== before!.names[i]))
  )
    return loadGrid(question, null, signal);
  const grid: Grid = {
    names,
    start,
    width,
    columns,
    end: to,
    sure,
    ...empty(names.length * columns),
  };
  const found = columns - kept;
  for (const field of ["low", "high", "mean", "rows", "bad"] as const)
    for (let i = 0; i < names.length; i++) {
      if (kept)
        grid[field].set(
          before![field].subarray(i * before!.columns, i * before!.columns + kept),
          i * columns,
        );
      grid[field].set(
        part.arrays[field].subarray(i * found, (i + 1) * found) as never,
        i * columns + kept,
      );
    }
  return grid;
}

/**
 * The same in at most so many columns: a picture of fewer pixels would leave columns out.
 *
 * Columns are merged, never chosen: the least, the greatest, the mean of all rows.
 */
export function coarsened(grid: Grid, most: number): Grid {
  let factor = 1;
  const width = () => grid.width * factor;
  const span = () =>
    Math.ceil((grid.start + grid.columns * grid.width) / width()) -
    Math.floor(grid.start / width());
  while (span() > Math.max(1, most)) factor *= 2;
  if (factor === 1) return grid;
  const start = Math.floor(grid.start / width()) * width();
  const columns = span();
  const made: Grid = {
    ...grid,
    start,
    width: width(),
    columns,
    ...empty(grid.names.length * columns),
  };
  made.low.fill(NaN);
  made.high.fill(NaN);
  made.mean.fill(NaN);
  const shift = (grid.start - start) / grid.width;
  for (let i = 0; i < grid.names.length; i++)
    for (let j = 0; j < grid.columns; j++)
      mergeCell(made, i * columns + Math.floor((j + shift) / factor), grid, i * grid.columns + j);
  return made;
}

/** Take the rows of a cell into another one: the least, the greatest, the mean of all. */
function mergeCell(made: Grid, to: number, grid: Grid, from: number): void {
  if (!grid.rows[from]) return;
  if (!Number.isNaN(grid.low[from])) {
    const before = Number.isNaN(made.mean[to]) ? 0 : made.rows[to];
    made.low[to] = before ? Math.min(made.low[to], grid.low[from]) : grid.low[from];
    made.high[to] = before ? Math.max(made.high[to], grid.high[from]) : grid.high[from];
    made.mean[to] =
      ((before ? made.mean[to] * before : 0) + grid.mean[from] * grid.rows[from]) /
      (before + grid.rows[from]);
  }
  made.rows[to] += grid.rows[from];
  made.bad[to] += grid.bad[from];
}

/** Neighbouring tensors as one row each: what is least and greatest in any of them. */
export function folded(grid: Grid, bands: number[][]): Grid {
  const made: Grid = {
    ...grid,
    names: bands.map((band) => grid.names[band[0]]),
    ...empty(bands.length * grid.columns),
  };
  made.low.fill(NaN);
  made.high.fill(NaN);
  made.mean.fill(NaN);
  bands.forEach((band, y) => {
    for (const i of band)
      for (let j = 0; j < grid.columns; j++) {
        const from = i * grid.columns + j;
        const to = y * grid.columns + j;
        if (!grid.rows[from]) continue;
        if (!Number.isNaN(grid.low[from])) {
          // fmin and fmax of C: a number beats what is none.
          // biome-ignore lint/complexity/useMathMinMax: Math.min of NaN and a number is NaN
          made.low[to] = made.low[to] <= grid.low[from] ? made.low[to] : grid.low[from];
          // biome-ignore lint/complexity/useMathMinMax: as above
          made.high[to] = made.high[to] >= grid.high[from] ? made.high[to] : grid.high[from];
          made.mean[to] = made.high[to];
        }
        made.rows[to] += grid.rows[from];
        made.bad[to] += grid.bad[from];
      }
  });
  return made;
}

/** Of some tensors the one that stands out in a column: not finite, or else the greatest. */
export function outstanding(grid: Grid, band: number[], column: number): number {
  let best = band[0];
  let most = -Infinity;
  for (const i of band) {
    const at = i * grid.columns + column;
    let weight = grid.rows[at] ? grid.high[at] : -Infinity;
    if (grid.bad[at]) weight = Infinity;
    if (weight > most) [best, most] = [i, weight];
  }
  return best;
}

function empty(n: number): Pick<Grid, "low" | "high" | "mean" | "rows" | "bad"> {
  return {
    low: new Float32Array(n),
    high: new Float32Array(n),
    mean: new Float32Array(n),
    rows: new Uint32Array(n),
    bad: new Uint32Array(n),
  };
}

/** Where in the grid the names are that it has, in their order. */
export function placesOf(grid: Grid, names: string[]): number[] {
  const place = new Map(grid.names.map((name, i) => [name, i]));
  return names.map((name) => place.get(name)).filter((i): i is number => i !== undefined);
}

/** Neighbours together: as few of them as give at most so many groups. */
export function grouped<T>(all: T[], most: number): T[][] {
  const n = Math.ceil(all.length / most) || 1;
  return Array.from({ length: Math.ceil(all.length / n) }, (_, y) => all.slice(y * n, (y + 1) * n));
}

/** The column that a step is in. */
export function columnOf(grid: Grid, step: number): number {
  return Math.min(grid.columns - 1, Math.max(0, Math.floor((step - grid.start) / grid.width)));
}

/** The last column up to *column* in which the tensor has rows; -1: there is none. */
export function lastWithRows(grid: Grid, row: number, column: number): number {
  for (let j = column; j >= 0; j--) if (grid.rows[row * grid.columns + j]) return j;
  return -1;
}

/** The columns in which any of these rows has something, in order. */
export function filledColumns(grid: Grid, rows = grid.names.map((_, i) => i)): number[] {
  const found: number[] = [];
  for (let j = 0; j < grid.columns; j++)
    if (rows.some((i) => grid.rows[i * grid.columns + j])) found.push(j);
  return found;
}

/** Stretches of places in which nothing was recorded, though a record stands for *interval* of them. */
export function gapsOf(grids: Grid[], interval: number): [number, number][] {
  const columns = grids
    .flatMap((grid) => filledColumns(grid).map((j) => grid.start + j * grid.width))
    .sort((a, b) => a - b);
  const width = Math.min(...grids.map((grid) => grid.width));
  return columns.flatMap((at, k): [number, number][] => {
    const end = at + width - 1 + interval;
    // What comes a little late, as where evaluation lies between, was not left out.
    return columns[k + 1] > end + interval / 2 ? [[end, columns[k + 1]]] : [];
  });
}

/** How far recorded columns are usually apart, at most. */
export function usualDistance(filled: number[]): number {
  const distances = filled.slice(1).map((j, k) => j - filled[k]);
  distances.sort((a, b) => a - b);
  return distances[Math.floor(distances.length * 0.9)] ?? 1;
}

/**
 * For how many columns the cell at each of *filled* stands: until the next one.
 *
 * Where every tenth step is captured, nine of ten columns have no rows, which is no gap, nor is
 * it one where a training begins to capture less often.  Where it is known for how many columns a
 * record stands at *most*, the rest stays empty; else what is longer than twice the usual
 * distance, and than twice the distances before and after it.
 */
export function standing(
  filled: number[],
  columns: number,
  usual: number,
  most?: number,
): number[] {
  const distance = (k: number) => (filled[k + 1] ?? columns) - filled[k] || 0;
  if (most !== undefined) return filled.map((_, k) => Math.min(most, distance(k)));
  return filled.map((_, k) => {
    const most = 2 * Math.max(usual, distance(k - 1));
    return distance(k) > Math.max(most, 2 * distance(k + 1)) ? most : distance(k);
  });
}

/** Where the greatest value is so many times the least, an axis of logarithms shows both. */
const FAR = 50;
/** So many times as far as 90 of 100 columns go, a few others may go before a linear axis crushes them. */
const CRUSHED = 8;

export interface ValueAxis {
  isLog: boolean;
  /** Why it is what it is, if nobody chose it. */
  why: string;
}

/** The axis of values that shows most of them, but for what the address says. */
export function axisOf(
  grids: Grid[],
  route: { axis?: string } | undefined,
  limits: { value: number }[] = [],
): ValueAxis {
  if (route?.axis) return { isLog: route.axis === "log", why: "" };
  const all = limits.map((each) => each.value);
  for (const grid of grids)
    for (let j = 0; j < grid.columns; j++)
      if (grid.rows[j] && !Number.isNaN(grid.low[j])) all.push(grid.low[j], grid.high[j]);
  const values = all.filter((value) => value > 0).sort((a, b) => a - b);
  if (!values.length || 2 * values.length < all.length) return { isLog: false, why: "" };
  const at = (share: number) => values[Math.floor(share * (values.length - 1))];
  const times = at(1) / at(0);
  if (times >= FAR)
    return {
      isLog: true,
      why: `the greatest value is ${number(Number(times.toPrecision(2)))} times the least`,
    };
  const isCrushed = times > 4 && at(1) - at(0) > CRUSHED * (at(0.95) - at(0.05));
  return { isLog: isCrushed, why: "a few values are far from the others" };
}
