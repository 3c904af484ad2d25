/** Runs beside each other: their courses on one axis, and what is wrong with each. */
import { useMemo, useState } from "preact/hooks";
import { series } from "../colors";
import { count, number, percent, plain, shorten } from "../format";
import { useRoute } from "../hooks";
import { LineChart, type Line } from "../line_chart";
import { Card, Chips, Link, Mark, Notice, State } from "../parts";
import { useGrid, useRun } from "../run_data";
import type { Grid } from "../grid";
import type { Answer } from "../hooks";
import type { Run } from "../types";

const MOST_RUNS = 6;

export function CompareScreen() {
  const route = useRoute();
  const ids = (route.runs ?? "").split(",").filter(Boolean).slice(0, MOST_RUNS);
  // Hooks are called in the same order each time, whatever the number of runs.
  const padded = Array.from({ length: MOST_RUNS }, (_, i) => ids[i] ?? "");
  const answers = padded.map((id) => useRunOrNone(id));
  const runs = answers.map((each) => each.data).filter((each): each is Run => each !== null);
  const shared = useMemo(() => (runs.length ? runs[0].curves.filter((name) => runs.every((run) => run.curves.includes(name))) : []), [runs.map((run) => run.id).join()]);
  const [curve, setCurve] = useState<string>();
  const [axis, setAxis] = useState<"linear" | "log">("linear");
  const name = curve ?? shared[0];
  const end = Math.max(1, ...runs.map((run) => (run.last_step ?? 0) + 1));
  const grids = padded.map((id, i) => useCurve(answers[i].data && name ? id : "", name ?? "", end, answers[i].version));
  const lines: Line[] = grids.flatMap((grid, i) => (grid.data && answers[i].data ? [{ label: plain(answers[i].data!.name), color: series(i), grid: grid.data }] : []));
  if (ids.length < 2)
    return (
      <main>
        <Notice title="Choose two runs or more to compare">
          <Link to={{}}>All runs</Link>
        </Notice>
      </main>
    );
  return (
    <main class="compare">
      <h1>
        {count(ids.length)} runs <span class="soft">beside each other, by step</span>
      </h1>
      <Card
        title="Loss"
        aside={
          <div class="settings">
            {shared.length > 1 && (
              <select class="curves" aria-label="Which curve" value={name} onChange={(event) => setCurve(event.currentTarget.value)}>
                {shared.map((each) => (
                  <option key={each} value={each}>
                    {shorten(each, 44)}
                  </option>
                ))}
              </select>
            )}
            <Chips label="Axis" options={["linear", "log"] as const} value={axis} onChange={setAxis} />
          </div>
        }
      >
        {name ? <LineChart lines={lines} title="Loss" from={0} to={end} log={axis === "log"} height={320} /> : <div class="empty soft">These runs share no loss and no scalar.</div>}
        <p class="reading">
          {lines.map((line) => (
            <span class="key" key={line.label}>
              <i style={{ background: line.color }} />
              {line.label}
            </span>
          ))}
        </p>
      </Card>
      <div class="scroll" tabIndex={0} role="region" aria-label="Runs in short">
        <table class="rows wide">
          <thead>
            <tr>
              <th>run</th>
              <th>state</th>
              <th>steps</th>
              <th>{shorten(name ?? "loss", 30)}, last</th>
              <th>cost</th>
              <th>what is wrong</th>
            </tr>
          </thead>
          <tbody>
            {padded.map((id, i) => {
              const run = answers[i].data;
              if (!run) return id && answers[i].error ? <tr key={id}><td colSpan={6}>{plain(answers[i].error!.message)}</td></tr> : null;
              return (
                <tr key={id}>
                  <td>
                    <i class="swatch" style={{ background: series(i) }} /> <Link to={{ run: id }}>{plain(run.name)}</Link>
                  </td>
                  <td>
                    <State status={run.status} stopped={run.stopped} />
                  </td>
                  <td>{count(run.steps)}</td>
                  <td>{number(lastOf(grids[i].data))}</td>
                  <td>{run.cost === null ? "–" : `+${percent(run.cost)}`}</td>
                  <td class="text">
                    <Mark tone={run.verdict.tone} size={13} /> {plain(run.verdict.sentence.replace(/^[^.]*\. /, ""))}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </main>
  );
}

function useRunOrNone(id: string): Answer<Run> & { version: number } {
  const found = useRun(id);
  return id ? found : { data: null, error: null, key: "", version: 0 };
}

function useCurve(run: string, name: string, end: number, version: number): Answer<Grid> {
  return useGrid(run ? { path: "curve", run, name, from: 0, to: end, most: 700 } : null, version);
}

function lastOf(grid: Grid | null): number | null {
  if (grid) for (let j = grid.columns - 1; j >= 0; j--) if (grid.rows[j]) return grid.mean[j];
  return null;
}
