/** A tensor on each rank: one line each, and who stands out first. */
import { useMemo } from "preact/hooks";
import { series, themed } from "./colors";
import { count, number, percent, plain } from "./format";
import { columnOf, folded, lastWithRows, type Grid } from "./grid";
import { LineChart } from "./line_chart";
import { Card } from "./parts";
import { useGrid, type Range } from "./run_data";
import type { Field, Run } from "./types";

/** More lines nobody tells apart: those of the others are one band. */
const MOST_LINES = 6;
const MOST_ROWS = 64;

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
    const means = at.filter((k) => grid.rows[k] && !Number.isNaN(grid.mean[k])).map((k) => grid.mean[k]);
    at.forEach((k, i) => grid.bad[k] && (off[i] = Infinity));
    if (means.length < 2) continue;
    means.sort((a, b) => a - b);
    const median = (means[(means.length - 1) >> 1] + means[means.length >> 1]) / 2;
    usual += Math.abs(median);
    columns++;
    at.forEach((k, i) => grid.rows[k] && (off[i] = Math.max(off[i], Math.abs(grid.mean[k] - median) || 0)));
  }
  const scale = usual / Math.max(1, columns) || 1;
  return Array.from(off, (value, rank) => ({ rank, off: value / scale })).sort((a, b) => b.off - a.off || a.rank - b.rank);
}

export function Ranks({ run, name, field, label, range, at, log, version }: { run: Run; name: string; field: Field; label: string; range: Range; at: number; log: boolean; version: number }) {
  const { data: grid } = useGrid({ path: "ranks", run: run.id, name, field, from: range.from, to: range.to, most: 400 }, version);
  const order = useMemo(() => (grid ? standings(grid) : []), [grid]);
  const lines = useMemo(() => {
    if (!grid) return [];
    const chosen = order.slice(0, MOST_LINES);
    const found = chosen.map(({ rank }, i) => ({ label: plain(grid.names[rank]), color: series(i), grid: only(grid, [rank]) }));
    if (order.length > chosen.length) {
      const all = only(grid, order.map(({ rank }) => rank));
      all.mean.fill(NaN);
      found.unshift({ label: "all ranks", color: themed("ink-soft"), grid: all });
    }
    return found;
  }, [grid, order]);
  if (!grid) return null;
  const column = columnOf(grid, at);
  return (
    <Card title="Ranks" aside={<span class="soft">{count(order.length)} ranks, {label}; who stands out most comes first</span>}>
      <div class="with-side ranks">
        <div>
          <LineChart lines={lines} title={`Ranks: ${label}`} from={range.from} to={range.to} log={log} height={220} cursor={at} onRange={range.set} onReset={range.reset} />
          <p class="reading">
            {lines.map((line) => (
              <span key={line.label} class="key">
                <i style={{ background: line.color }} />
                {line.label}
              </span>
            ))}
          </p>
        </div>
        <div class="scroll" tabIndex={0} role="region" aria-label="Ranks">
          <table>
            <thead>
              <tr>
                <th>rank</th>
                <th>step {count(at)}</th>
                <th>apart by</th>
              </tr>
            </thead>
            <tbody>
              {order.slice(0, MOST_ROWS).map(({ rank, off }) => {
                const held = lastWithRows(grid, rank, column);
                return (
                  <tr key={rank}>
                    <td>{plain(grid.names[rank])}</td>
                    <td>{held < 0 ? "–" : number(grid.mean[rank * grid.columns + held])}</td>
                    <td class={off === Infinity ? "bad" : ""}>{off === Infinity ? "NaN or Inf" : percent(off)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </div>
    </Card>
  );
}

function only(grid: Grid, ranks: number[]): Grid {
  const made = folded(grid, [ranks]);
  if (ranks.length === 1) made.mean.set(grid.mean.subarray(ranks[0] * grid.columns, (ranks[0] + 1) * grid.columns));
  return made;
}
