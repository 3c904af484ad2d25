/** The losses of the compared runs on one axis; what charts of several runs share. */
import { useMemo } from "preact/hooks";
import { number, plain } from "../format";
import { axisOf, type Grid, type ValueAxis } from "../grid";
import { type Answer, type Route, setCursor, setter } from "../hooks";
import { AxisNote, type Line, LineChart } from "../line_chart";
import { AxisChips, Card, Select } from "../parts";
import { cursorOf, type Range, useGrid } from "../run_data";
import type { Run } from "../types";
import { type By, placeText } from "./alignment";

export const COLUMNS = 700;

/** A run of the comparison. */
export interface Compared {
  run: Run;
  version: number;
  color: string;
}

/** Lines of the runs that have an answer. */
export function linesOf(runs: (Compared | undefined)[], grids: Answer<Grid>[]): Line[] {
  return runs.flatMap((each, i) => {
    const grid = grids[i].data;
    return each && grid ? [{ label: plain(each.run.name), color: each.color, grid }] : [];
  });
}

export interface Shown {
  runs: (Compared | undefined)[];
  by: By;
  range: Range;
  route: Route;
}

export function Curves({ runs, by, range, route }: Shown) {
  const known = runs.flatMap((each) => (each ? [each.run] : []));
  const key = known.map((run) => `${run.id}${run.curves.length}`).join();
  const shared = useMemo(
    () =>
      known.length
        ? known[0].curves.filter((name) => known.every((run) => run.curves.includes(name)))
        : [],
    [key],
  );
  const name = route.curve && shared.includes(route.curve) ? route.curve : shared[0];
  const grids = runs.map((each) =>
    useGrid(
      each && name
        ? {
            path: "curve",
            run: each.run.id,
            name,
            by,
            from: range.from,
            to: range.to,
            most: COLUMNS,
          }
        : null,
      each?.version ?? 0,
    ),
  );
  const lines = linesOf(runs, grids);
  const axis = axisOfLines(lines, route);
  return (
    <Card
      title="Loss"
      aside={
        <div class="settings">
          {shared.length > 1 && (
            <Select
              label="Which curve"
              class="curves"
              options={shared}
              value={name}
              onChange={setter("curve", shared[0])}
            />
          )}
          <AxisChips isLog={axis.isLog} />
        </div>
      }
    >
      {name ? (
        <Chart lines={lines} title="Loss" by={by} range={range} route={route} log={axis.isLog} />
      ) : (
        <div class="empty soft">
          {known.length ? "These runs share no loss and no scalar." : "reading …"}
        </div>
      )}
      <Keys lines={lines} axis={axis} />
    </Card>
  );
}

export function Chart({
  lines,
  title,
  by,
  range,
  route,
  log,
}: {
  lines: Line[];
  title: string;
  by: By;
  range: Range;
  route: Route;
  log: boolean;
}) {
  return (
    <LineChart
      key={by}
      lines={lines}
      title={title}
      from={range.from}
      to={range.to}
      log={log}
      height={280}
      cursor={cursorOf(route)}
      place={(n) => placeText(by, n)}
      onRange={range.set}
      onReset={range.reset}
      onCursor={setCursor}
    />
  );
}

/** The axis that shows most of all lines. */
export function axisOfLines(lines: Line[], route: Route): ValueAxis {
  return axisOf(
    lines.map((line) => line.grid),
    route,
  );
}

export function Keys({
  lines,
  axis,
  without = [],
}: {
  lines: Line[];
  axis: ValueAxis;
  without?: string[];
}) {
  return (
    <p class="reading">
      {lines.map((line) => (
        <span class="key" key={line.label}>
          <i style={{ background: line.color }} />
          {line.label} <em>{number(lastOf(line.grid))}</em>
        </span>
      ))}
      <AxisNote axis={axis} lines={lines} />
      {without.length > 0 && <span class="soft">not in {without.join(", ")}</span>}
    </p>
  );
}

function lastOf(grid: Grid): number | null {
  for (let j = grid.columns - 1; j >= 0; j--) if (grid.rows[j]) return grid.mean[j];
  return null;
}
