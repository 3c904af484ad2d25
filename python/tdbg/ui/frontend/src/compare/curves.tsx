/** The losses of the compared runs on one axis; what charts of several runs share. */
import { useMemo } from "preact/hooks";
import { number, plain } from "../format";
import type { Grid } from "../grid";
import { type Answer, type Route, setCursor, setter } from "../hooks";
import { type Line, LineChart } from "../line_chart";
import { AxisChips, Card, Select } from "../parts";
import { cursorOf, type Range, spans, useGrid } from "../run_data";
import type { Run } from "../types";
import { type By, placeText } from "./alignment";

export const COLUMNS = 700;

/** How many times its least value the greatest of a course is that runs away. */
const FAR = 1e6;

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
  const isLog = isLogarithmic(lines, route);
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
          <AxisChips isLog={isLog} />
        </div>
      }
    >
      {name ? (
        <Chart lines={lines} title="Loss" by={by} range={range} route={route} log={isLog} />
      ) : (
        <div class="empty soft">
          {known.length ? "These runs share no loss and no scalar." : "reading …"}
        </div>
      )}
      <Keys lines={lines} />
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

/** A course that runs away would leave a line at the floor of all the others. */
export function isLogarithmic(lines: Line[], route: Route): boolean {
  return route.axis ? route.axis === "log" : lines.some(({ grid }) => spans(grid) > FAR);
}

export function Keys({ lines, without = [] }: { lines: Line[]; without?: string[] }) {
  return (
    <p class="reading">
      {lines.map((line) => (
        <span class="key" key={line.label}>
          <i style={{ background: line.color }} />
          {line.label} <em>{number(lastOf(line.grid))}</em>
        </span>
      ))}
      {without.length > 0 && <span class="soft">not in {without.join(", ")}</span>}
    </p>
  );
}

function lastOf(grid: Grid): number | null {
  for (let j = grid.columns - 1; j >= 0; j--) if (grid.rows[j]) return grid.mean[j];
  return null;
}
