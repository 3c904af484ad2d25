/** Ranks beside each other, who stands out first: a line each, and a map of rank by step. */
import { useMemo } from "preact/hooks";
import { series, themed } from "./colors";
import { compareNames, count, number, percent, plain } from "./format";
import { columnOf, folded, type Grid, lastWithRows } from "./grid";
import { adjust, setCursor, setter } from "./hooks";
import { EXTENT_COLUMNS, LayerMap } from "./layer_map";
import { LineChart } from "./line_chart";
import { Card, LineKeys, Scroll, Select } from "./parts";
import { type Range, useGrid } from "./run_data";
import type { Field, Finding, RankField, Run } from "./types";

/** More lines nobody tells apart: those of the others are one band. */
const MOST_LINES = 6;
const MOST_ROWS = 64;
const NONE: Finding[] = [];

export interface Standing {
  rank: number;
  /** How far it was from the median of all ranks at most, relative to what is usual; Infinity: not finite. */
  off: number;
}

/** Ranks, the one that stands out most first. */
export function standings(grid: Grid): Standing[] {
  const n = grid.names.length;
  const off = new Float64Array(n);
  let usual = 0;
  let columns = 0;
  for (let j = 0; j < grid.columns; j++) {
    const at = Array.from({ length: n }, (_, i) => i * grid.columns + j);
    const means = at
      .filter((k) => grid.rows[k] && !Number.isNaN(grid.mean[k]))
      .map((k) => grid.mean[k]);
    at.forEach((k, i) => {
      if (grid.bad[k]) off[i] = Infinity;
    });
    if (means.length < 2) continue;
    means.sort((a, b) => a - b);
    const median = (means[(means.length - 1) >> 1] + means[means.length >> 1]) / 2;
    usual += Math.abs(median);
    columns++;
    at.forEach((k, i) => {
      if (grid.rows[k]) off[i] = Math.max(off[i], Math.abs(grid.mean[k] - median) || 0);
    });
  }
  const scale = usual / Math.max(1, columns) || 1;
  return Array.from(off, (value, rank) => ({ rank, off: value / scale })).sort(
    (a, b) => b.off - a.off || a.rank - b.rank,
  );
}

/** Which rank is looked at alone. */
export function RankSelect({ run, rank }: { run: Run; rank: string | undefined }) {
  const names = Object.keys(run.workers).sort(compareNames);
  return (
    <Select
      label="Rank"
      options={["", ...names]}
      names={{ "": "all ranks" }}
      value={rank ?? ""}
      onChange={setter("rank", "")}
    />
  );
}

interface Shown {
  run: Run;
  range: Range;
  cursor: number | undefined;
  version: number;
}

/** What each rank has, who stands out, and the whole run where the range is a part of it. */
function useRanks(
  { run, range, version }: Shown,
  field: RankField,
  name?: string,
): [Grid | null, Standing[], Grid | null] {
  const ranks = { path: "ranks", run: run.id, name, field } as const;
  const { data } = useGrid({ ...ranks, from: range.from, to: range.to, most: 400 }, version);
  const whole = useGrid(
    range.isWhole ? null : { ...ranks, ...range.whole, most: EXTENT_COLUMNS },
    version,
  );
  return [data, useMemo(() => (data ? standings(data) : []), [data]), whole.data];
}

function RankMap({
  grid,
  whole,
  order,
  field,
  range,
  cursor,
  gutter,
}: Shown & {
  grid: Grid;
  whole: Grid | null;
  order: Standing[];
  field: RankField;
  gutter?: number;
}) {
  const names = useMemo(() => order.map(({ rank }) => grid.names[rank]), [order]);
  return (
    <LayerMap
      grid={grid}
      whole={whole}
      field={field}
      what="rank"
      gutter={gutter}
      scale="all"
      from={range.from}
      to={range.to}
      order={names}
      each
      worst={false}
      fold={undefined}
      onFold={() => undefined}
      label={plain}
      findings={NONE}
      end={range.to}
      cursor={cursor}
      onCursor={setCursor}
      onOpen={(rank, step) => adjust({ rank, at: String(step) })}
      onRange={range.set}
      onReset={range.reset}
    />
  );
}

/** How long steps took on each rank, where that is known: whom the others wait for. */
export function StepTimes(props: Shown) {
  const [grid, order, whole] = useRanks(props, "seconds");
  if (!grid?.rows.some(Boolean)) return null;
  return (
    <Card
      title="Step time of each rank"
      class="step-times"
      aside={<span class="soft">the rank that stands out most comes first</span>}
    >
      <RankMap {...props} grid={grid} whole={whole} order={order} field="seconds" />
    </Card>
  );
}

export function Ranks(
  props: Shown & { name: string; field: Field; label: string; at: number; log: boolean },
) {
  const { name, field, label, range, at, log } = props;
  const [grid, order, whole] = useRanks(props, field, name);
  const lines = useMemo(() => {
    if (!grid) return [];
    const chosen = order.slice(0, MOST_LINES);
    const found = chosen.map(({ rank }, i) => ({
      label: plain(grid.names[rank]),
      color: series(i),
      grid: only(grid, [rank]),
    }));
    if (order.length > chosen.length) {
      const all = only(
        grid,
        order.map(({ rank }) => rank),
      );
      all.mean.fill(NaN);
      found.unshift({ label: "all ranks", color: themed("ink-soft"), grid: all });
    }
    return found;
  }, [grid, order]);
  if (!grid) return null;
  const column = columnOf(grid, at);
  return (
    <Card
      title="Ranks"
      aside={
        <span class="soft">
          {count(order.length)} ranks, {label}; the rank that stands out most comes first
        </span>
      }
    >
      <div class="with-side ranks">
        <div>
          <LineChart
            lines={lines}
            title={`Ranks: ${label}`}
            from={range.from}
            to={range.to}
            log={log}
            gutter={96}
            height={220}
            cursor={at}
            onRange={range.set}
            onReset={range.reset}
          />
          <p class="reading">
            <LineKeys lines={lines} />
          </p>
          <RankMap {...props} grid={grid} whole={whole} order={order} gutter={96} />
        </div>
        <Scroll label="Ranks">
          <table>
            <thead>
              <tr>
                <th>rank</th>
                <th>step {count(at)}</th>
                <th>differs by</th>
              </tr>
            </thead>
            <tbody>
              {order.slice(0, MOST_ROWS).map(({ rank, off }) => {
                const held = lastWithRows(grid, rank, column);
                return (
                  <tr key={rank}>
                    <td>{plain(grid.names[rank])}</td>
                    <td>{held < 0 ? "–" : number(grid.mean[rank * grid.columns + held])}</td>
                    <td class={off === Infinity ? "bad" : ""}>
                      {off === Infinity ? "NaN or Inf" : percent(off)}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </Scroll>
      </div>
    </Card>
  );
}

function only(grid: Grid, ranks: number[]): Grid {
  const made = folded(grid, [ranks]);
  if (ranks.length === 1)
    made.mean.set(grid.mean.subarray(ranks[0] * grid.columns, (ranks[0] + 1) * grid.columns));
  return made;
}
