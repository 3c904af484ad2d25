/** The losses of a run, and its scalars one at a time. */

import { useMemo } from "preact/hooks";
import { series, themed } from "../colors";
import { count, number, plain } from "../format";
import { axisOf } from "../grid";
import { type Route, setCursor, setter } from "../hooks";
import { AxisNote, LineChart } from "../line_chart";
import { AxisChips, Card, LineKeys, Select } from "../parts";
import { type Range, useGrid } from "../run_data";
import type { Run } from "../types";

const CURVE_COLUMNS = 900;

/** Which curve belongs to which: losses first, of scalars one at a time. */
export function Losses({
  run,
  range,
  route,
  version,
  cursor,
}: {
  run: Run;
  range: Range;
  route: Route;
  version: number;
  cursor: number | undefined;
}) {
  const name = route.curve && run.curves.includes(route.curve) ? route.curve : run.curves[0];
  const modes = run.modes.filter((mode) => mode === "TRAIN" || mode === "EVAL");
  const split = modes.length > 1;
  const request = (mode?: string) =>
    name
      ? {
          path: "curve" as const,
          run: run.id,
          name,
          mode,
          from: range.from,
          to: range.to,
          most: CURVE_COLUMNS,
        }
      : null;
  const train = useGrid(request(split ? "TRAIN" : undefined), version);
  const evaluation = useGrid(split ? request("EVAL") : null, version);
  const lines = useMemo(() => {
    const found = [];
    const isEvaluated = split && evaluation.data?.rows.some((n) => n > 0);
    if (train.data && !(isEvaluated && train.data.rows.every((n) => n === 0)))
      found.push({
        label: split ? "train" : plain(name ?? ""),
        color: series(0),
        grid: train.data,
      });
    if (isEvaluated) found.push({ label: "evaluation", color: series(1), grid: evaluation.data! });
    return found;
  }, [train.data, evaluation.data, split, name]);
  const axis = useMemo(
    () =>
      axisOf(
        lines.map((line) => line.grid),
        route,
      ),
    [lines, route.axis],
  );
  const flags = useMemo(
    () =>
      run.findings
        .filter((each) => each.tensor === name)
        .map((each) => ({
          from: each.first_step,
          to: each.last_step + 1,
          color: themed(each.severity),
        })),
    [run.findings, name],
  );
  const bad = lines.reduce((sum, { grid }) => sum + grid.bad.reduce((a, b) => a + b, 0), 0);
  const lastLoss = range.isWhole && run.last_loss?.name === name ? run.last_loss : null;
  const last = lines[0] ? lastValue(lines[0].grid) : null;
  const isBad = last !== null && Number.isNaN(last);
  const value = last === null || isBad ? "NaN" : number(last);
  const told = lastLoss?.text ?? value;
  return (
    <Card
      title="Loss"
      aside={
        <div class="settings">
          {(lastLoss || last !== null) && <span class={`now${isBad ? " bad" : ""}`}>{told}</span>}
          {run.curves.length > 1 && (
            <Select
              label="Which curve"
              class="curves"
              options={run.curves}
              value={name!}
              onChange={setter("curve", run.curves[0])}
            />
          )}
          <AxisChips isLog={axis.isLog} />
        </div>
      }
    >
      {!name ? (
        <div class="empty">
          <p>No loss or scalar was captured.</p>
          <p class="soft">
            Register it: <code>hook.register_loss(criterion)</code>
          </p>
        </div>
      ) : (
        <LineChart
          error={train.error}
          lines={lines}
          title="Loss"
          from={range.from}
          to={range.to}
          log={axis.isLog}
          interval={1}
          height={236}
          cursor={cursor}
          flags={flags}
          onRange={range.set}
          onReset={range.reset}
          onCursor={setCursor}
        />
      )}
      {name && (
        <p class="reading">
          {lines.length > 1 && <LineKeys lines={lines} />}
          {bad > 0 ? (
            <strong class="bad">
              NaN or Inf in {count(bad)} step{bad > 1 && "s"}
            </strong>
          ) : (
            <span class="soft">line: mean · band: minimum to maximum of a column</span>
          )}
          <AxisNote axis={axis} lines={lines} />
        </p>
      )}
    </Card>
  );
}

/** The last value, where its column has no other: the mean of several is none of them. */
function lastValue(grid: {
  columns: number;
  rows: Uint32Array;
  mean: Float32Array;
}): number | null {
  for (let j = grid.columns - 1; j >= 0; j--)
    if (grid.rows[j]) return grid.rows[j] === 1 ? grid.mean[j] : null;
  return null;
}
