/** The table of runs as a file: its rows as CSV, and the losses that it draws as a picture. */
import { series } from "../colors";
import { count } from "../format";
import type { Grid } from "../grid";
import type { Line } from "../line_chart";
import { type Cell, type Drawing, saver } from "../saving";
import type { ListedRun } from "../types";
import type { Column } from "./columns";
import type { Selection } from "./selection";

/** More lines are told apart on no picture; the rows are all there. */
const MOST_LINES = 30;
/** As of a small picture in the table. */
const WIDE_RANGE = 50;

export function SaveRuns({ selection }: { selection: Selection }) {
  const { chosen, shown, shownColumns } = selection;
  const runs = chosen.length ? chosen : shown;
  return (
    <button
      type="button"
      class="small"
      title="Save as CSV, PNG or SVG"
      onClick={() => saver.open?.(drawingOf(runs, shownColumns))}
    >
      Export
    </button>
  );
}

function drawingOf(runs: ListedRun[], columns: Column[]): Drawing {
  const drawn = runs.filter((run) => run.loss?.mean.length).slice(0, MOST_LINES);
  const lines = drawn.map((run, i): Line => {
    return { label: run.name, color: series(i), grid: gridOf(run), isMany: drawn.length > 3 };
  });
  const values = lines
    .flatMap(({ grid }) => [...grid.mean])
    .filter((value) => !Number.isNaN(value));
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  return {
    kind: "lines",
    title: drawn.length < runs.length ? `losses of ${drawn.length} runs` : "losses of the runs",
    lines,
    from: Math.min(...lines.map(({ grid }) => grid.start)),
    to: Math.max(...lines.map(({ grid }) => grid.end)),
    log: least > 0 && greatest > WIDE_RANGE * least,
    place: (place) => count(Math.round(place)),
    table: () => [
      columns.map((column) => column.label),
      ...runs.map((run) => columns.map((column) => cellOf(column, run))),
    ],
  };
}

/** A value as it is, and not as the table rounds it. */
function cellOf(column: Column, run: ListedRun): Cell {
  const value = column.of(run);
  return value === null ? "NaN" : (value ?? null);
}

/** The loss that a row draws, on the axis of training steps. */
function gridOf(run: ListedRun): Grid {
  const spark = run.loss!;
  const [start, end] = [run.starts.step, run.ends.step];
  const columns = spark.mean.length;
  const numbers = (values: (number | null)[]) => Float32Array.from(values, (x) => x ?? Number.NaN);
  return {
    names: [run.id],
    start,
    end,
    width: Math.max(1, Math.ceil((end - start) / columns)),
    columns,
    low: numbers(spark.low),
    high: numbers(spark.high),
    mean: numbers(spark.mean),
    rows: Uint32Array.from(spark.mean, (x, j) => Number(x !== null) + spark.bad[j]),
    bad: Uint32Array.from(spark.bad),
    sure: end,
  };
}
